// SPDX-License-Identifier: Apache-2.0
// Mutex, scoped lock and condition variable with clang's thread-safety annotations, which std::mutex lacks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// See https://clang.llvm.org/docs/ThreadSafetyAnalysis.html. Other compilers ignore the annotations.
#if defined(__clang__)
#define PF_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define PF_THREAD_ANNOTATION(x)
#endif
#define PF_CAPABILITY(x) PF_THREAD_ANNOTATION(capability(x))
#define PF_SCOPED_CAPABILITY PF_THREAD_ANNOTATION(scoped_lockable)
#define PF_GUARDED_BY(x) PF_THREAD_ANNOTATION(guarded_by(x))
#define PF_REQUIRES(...) PF_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define PF_EXCLUDES(...) PF_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define PF_ACQUIRE(...) PF_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define PF_RELEASE(...) PF_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace pinfeed {

class PF_CAPABILITY("mutex") Mutex {
 public:
  void Lock() PF_ACQUIRE() { mutex_.lock(); }
  // For a lock that many threads take often and hold for less than it takes to wake one: tries for a few
  // microseconds before it sleeps.
  void LockAdaptively() PF_ACQUIRE() {
    for (int i = 0; i < kSpins; ++i) {
      if (mutex_.try_lock()) return;
      for (int j = 0; j < kPausesPerSpin; ++j) Pause();
    }
    mutex_.lock();
  }
  void Unlock() PF_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  static constexpr int kSpins = 20;
  static constexpr int kPausesPerSpin = 4;  // 40 ns each on current x86 processors

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
  }

  std::mutex mutex_;
};

class PF_SCOPED_CAPABILITY MutexLock {
 public:
  struct Adaptively {};

  explicit MutexLock(Mutex& mutex) PF_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  MutexLock(Mutex& mutex, Adaptively) PF_ACQUIRE(mutex) : mutex_(mutex) { mutex_.LockAdaptively(); }
  ~MutexLock() PF_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits may wake spuriously, so call them in a loop that checks the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) PF_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // Returns false when `deadline` has passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline) PF_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool signalled = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace pinfeed
