// SPDX-License-Identifier: Apache-2.0
//
// A process with a GPU context that does one command after another, so that an experiment reads as a script
// of what daemon and trainers do. In: commands over a socket. Out: answers with the driver's result, the time
// it took and a value.
#pragma once

#include <optional>

#include "gpu.h"
#include "process.h"

namespace pinfeed {

enum class Op {
  // Makes arena `index` of `bytes` (flag: while a kernel of 500 ms runs), fills it by `seed`. Answers offer
  // and descriptor.
  kExport,
  kImport,      // maps `offer` as arena `index`; flag: read-only
  kVerify,      // value: words of arena `index` that are not as `seed` says
  kFill,        // a kernel writes arena `index` by `seed`
  kCopyIn,      // the copy engine writes 4 KiB to arena `index`
  kGrantWrite,  // asks for write access to the imported arena `index`
  kDrop,  // unmaps, closes or frees arena `index`; flag: while a kernel of 500 ms runs in another stream
  // Starts a kernel for `bytes` nanoseconds (flag: on the whole device) that counts in shared word `index`
  // and, with a seed, in arena `seed` - 1.
  kSpin,
  kCopyForever,  // queues copies from the host, of changing content, to arena `index`; never answers
  kMakeEvent,    // makes the process's event, for other processes
  kOpenEvent,    // opens another process's event
  kRecordEvent,  // records it on the stream, behind what runs there
  kQueryEvent,
  kWaitEvent,    // makes the second stream wait for it
  kSyncEvent,    // blocks for it
  kQuerySecond,  // whether the second stream is idle
  kAllocate,     // allocates `bytes`, sets all to 0xff and keeps them
  kFree,         // frees what kAllocate gave
  kLifeline,     // makes a connection, as a client would; its other end is the descriptor of the answer
  kPeer,  // value: twice the pid of the lent connection's peer, plus 1 if NVML, asked here, lists that pid
  kFreeBytes,  // value: free memory of the device
  kCopyFor,    // copies to the device for `bytes` nanoseconds; value: the longest copy in microseconds
  kFork,       // forks a child that sleeps; flag: which first closes all descriptors; value: its pid
  kForkExec,   // forks and executes a child that sleeps; value: its pid
  kQuit,       // ends in an orderly way
};

struct Command {
  Op op = Op::kQuit;
  int index = 0;
  std::uint64_t bytes = 0;
  std::uint64_t seed = 0;
  bool flag = false;
  Offer offer{};
  CUipcEventHandle event{};
};

struct Answer {
  CUresult result = CUDA_SUCCESS;
  double ms = 0;
  std::uint64_t value = 0;
  Offer offer{};
  CUipcEventHandle event{};
};

constexpr int kSharedWords = 512;

// Words that all processes see and kernels can write: one page a word's neighbourhood is enough for all
// experiments.
std::uint64_t* SharedWords();

class Worker {
 public:
  explicit Worker(const Place& place = {});
  ~Worker() { Reap(&process_); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Does a command that must come to an end, though it may fail; `give` is lent, `take` becomes the caller's.
  Answer Call(const Command& command, int give = -1, int* take = nullptr);
  void Post(const Command& command, int give = -1);
  // Nothing if there is no answer within the time, or the process is gone.
  std::optional<Answer> Await(double seconds, int* take = nullptr);

  void Kill() const { kill(process_.pid, SIGKILL); }
  bool Over(double seconds) const { return Ended(process_, seconds); }
  const Process& process() const { return process_; }

 private:
  Process process_;
};

}  // namespace pinfeed
