// SPDX-License-Identifier: Apache-2.0
// The main function of every C++ test. In: the gtest command line and $PINFEED_TEST_TIMEOUT_S. Out: gtest's
// verdict; or, when one test case runs longer than the limit, the stack of every thread and an abort, so that
// a hang names its culprit.
#include "tests/support/testing.h"

#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "common/base/sync.h"

namespace pinfeed {
namespace {

constexpr int kMaxFrames = 48;
constexpr std::chrono::seconds kDefaultLimit{60};

// Where a signalled thread leaves its stack. One thread is asked at a time; `frame_count` is 0 until it has
// answered.
struct StackReport {
  std::array<void*, kMaxFrames> frames;
  std::atomic<int> frame_count{0};
};
StackReport g_report;

int StackSignal() {
  return SIGRTMAX - 1;
}

void ReportStack(int /*signal*/) {
  const int saved_errno = errno;
  g_report.frame_count.store(backtrace(g_report.frames.data(), kMaxFrames), std::memory_order_release);
  errno = saved_errno;
}

// One line a frame: object+offset, then the exported name or what addr2line (of binutils, which the compiler
// needs anyway) knows.
void PrintFrame(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    std::fprintf(stderr, "    %p\n", address);
    return;
  }
  const auto offset =
      static_cast<std::size_t>(static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase));
  std::fprintf(stderr, "    %s+0x%zx ", info.dli_fname, offset);
  if (info.dli_sname != nullptr) {
    std::fprintf(stderr, "%s\n", info.dli_sname);
    return;
  }
  std::array<char, 1024> command{};
  const int length = std::snprintf(command.data(), command.size(), "addr2line -Cpfie '%s' 0x%zx >&2",
                                   info.dli_fname, offset - 1);
  const bool fits = length > 0 && static_cast<std::size_t>(length) < command.size();
  if (!fits || std::system(command.data()) != 0) std::fprintf(stderr, "(no addr2line)\n");
}

std::vector<pid_t> ThreadIds() {
  std::vector<pid_t> ids;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return ids;
  while (const dirent* entry = readdir(tasks)) {
    const std::string_view name(entry->d_name);
    pid_t id = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), id).ec == std::errc{}) ids.push_back(id);
  }
  closedir(tasks);
  return ids;
}

void PrintAllStacks() {
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));
  for (const pid_t id : ThreadIds()) {
    if (id == self) continue;
    g_report.frame_count.store(0, std::memory_order_relaxed);
    if (syscall(SYS_tgkill, getpid(), id, StackSignal()) != 0) continue;
    for (int tries = 0; tries < 200 && g_report.frame_count.load(std::memory_order_acquire) == 0; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const int count = g_report.frame_count.load(std::memory_order_acquire);
    std::fprintf(stderr, "  thread %d%s\n", id,
                 count == 0 ? " did not answer (blocked signal or kernel wait)" : ":");
    for (int i = 0; i < count; ++i) PrintFrame(g_report.frames.at(static_cast<std::size_t>(i)));
  }
}

std::chrono::seconds LimitFromEnvironment() {
  const char* text = std::getenv("PINFEED_TEST_TIMEOUT_S");
  if (text == nullptr) return kDefaultLimit;
  const std::string_view view(text);
  int seconds = 0;
  const auto parsed = std::from_chars(view.data(), view.data() + view.size(), seconds);
  if (parsed.ec != std::errc{} || parsed.ptr != view.data() + view.size() || seconds <= 0) {
    std::fprintf(stderr, "PINFEED_TEST_TIMEOUT_S=%s: not a positive number of seconds\n", text);
    std::exit(2);
  }
  return std::chrono::seconds(seconds);
}

// Purpose: a deadline for the test case that runs now. Owns: one thread. Threads: gtest's main thread calls;
// the own thread waits. Invariant: between OnTestEnd and OnTestStart nothing can time out.
class Watchdog : public ::testing::EmptyTestEventListener {
 public:
  explicit Watchdog(std::chrono::seconds limit) : limit_(limit), thread_([this] { Run(); }) {}
  ~Watchdog() override {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void OnTestStart(const ::testing::TestInfo& test) override {
    const MutexLock lock(mutex_);
    running_ = std::string(test.test_suite_name()) + "." + test.name();
    deadline_ = std::chrono::steady_clock::now() + limit_;
    changed_.NotifyAll();
  }
  void OnTestEnd(const ::testing::TestInfo& /*test*/) override {
    const MutexLock lock(mutex_);
    running_.clear();
  }

 private:
  void Run() {
    mutex_.Lock();
    while (!stop_) {
      if (running_.empty()) {
        changed_.Wait(mutex_);
      } else if (std::chrono::steady_clock::now() < deadline_) {
        changed_.WaitUntil(mutex_, deadline_);
      } else {
        std::fprintf(stderr, "watchdog: %s still runs after %lld s; stacks of all threads:\n",
                     running_.c_str(), static_cast<long long>(limit_.count()));
        PrintAllStacks();
        std::abort();
      }
    }
    mutex_.Unlock();
  }

  const std::chrono::seconds limit_;
  Mutex mutex_;
  CondVar changed_;
  bool stop_ PF_GUARDED_BY(mutex_) = false;
  std::string running_ PF_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point deadline_ PF_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it reads all of the above
};

[[noreturn]] void Die(const std::string& what) {
  std::perror(what.c_str());
  std::abort();
}

std::filesystem::path MakeTempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "pinfeed-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) Die("mkdtemp " + name);
  return name;
}

}  // namespace

TempDir::TempDir() : path_(MakeTempDir()) {}

TempDir::~TempDir() {
  std::error_code ignored;  // a leftover below /tmp fails no test
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TempDir::Write(std::string_view name, std::string_view content) const {
  return Write(name, std::as_bytes(std::span(content)));
}

std::filesystem::path TempDir::Write(std::string_view name, std::span<const std::byte> content) const {
  std::filesystem::path file = path_ / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  out.close();
  if (!out) Die("write " + file.string());
  return file;
}

ScopedEnv::ScopedEnv(std::string name, const char* value) : name_(std::move(name)) {
  const char* old_value = std::getenv(name_.c_str());
  was_set_ = old_value != nullptr;
  if (was_set_) old_value_ = old_value;
  if (value != nullptr) {
    setenv(name_.c_str(), value, 1);
  } else {
    unsetenv(name_.c_str());
  }
}

ScopedEnv::~ScopedEnv() {
  if (was_set_) {
    setenv(name_.c_str(), old_value_.c_str(), 1);
  } else {
    unsetenv(name_.c_str());
  }
}

int ExitStatusOfFork(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace pinfeed

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  // The watchdog is a thread, and a fork with threads is unsafe: death tests start the program anew.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::chrono::seconds limit = pinfeed::LimitFromEnvironment();
  struct sigaction action {};
  action.sa_handler = pinfeed::ReportStack;
  action.sa_flags = SA_RESTART;
  sigaction(pinfeed::StackSignal(), &action, nullptr);
  std::array<void*, 1> first_use{};
  backtrace(first_use.data(), 1);  // loads libgcc now, so that the signal handler need not allocate
  ::testing::UnitTest::GetInstance()->listeners().Append(new pinfeed::Watchdog(limit));  // gtest owns it
  return RUN_ALL_TESTS();
}
