// SPDX-License-Identifier: Apache-2.0
#include "worker.h"

#include <array>
#include <vector>

namespace pinfeed {
namespace {

std::uint64_t* shared_words = nullptr;

// The side of a Worker that runs in the process itself.
class Session {
 public:
  explicit Session(int socket) : socket_(socket) {
    CU(cuMemAlloc(&counter_, sizeof(std::uint64_t)));
    CU(cuMemHostRegister(shared_words, kSharedWords * sizeof(std::uint64_t), CU_MEMHOSTREGISTER_DEVICEMAP));
  }

  void Run() {
    for (Command command; ReceiveMessage(socket_, &command, sizeof(command), &fd_);) {
      answer_ = {};
      reply_fd_ = -1;
      const double start = Now();
      answer_.result = Do(command);
      if (answer_.ms == 0) answer_.ms = (Now() - start) * 1e3;
      SendMessage(socket_, &answer_, sizeof(answer_), reply_fd_);
      if (fd_ >= 0) close(fd_);
      if (reply_fd_ >= 0) close(reply_fd_);
      if (command.op == Op::kQuit) return;
    }
  }

 private:
  CUresult Do(const Command& command) {
    Arena& arena = arenas_[std::size_t(command.index) % arenas_.size()];
    switch (command.op) {
      case Op::kExport: {
        if (command.flag) StartLongKernel();
        const double start = Now();
        arena = ExportArena(gpu_, command.offer.backend, command.bytes, &answer_.offer, &reply_fd_);
        answer_.ms = (Now() - start) * 1e3;
        return Fill(arena, command.seed);
      }
      case Op::kImport:
        return ImportArena(gpu_, command.offer, fd_, command.flag, &arena);
      case Op::kVerify:
        return Verify(arena, command.seed);
      case Op::kFill:
        return Fill(arena, command.seed);
      case Op::kCopyIn: {
        const std::vector<char> zeros(4096);
        return cuMemcpyHtoD(arena.address, zeros.data(), zeros.size());
      }
      case Op::kGrantWrite: {
        CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, gpu_.device},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        return cuMemSetAccess(arena.address, arena.bytes, &access, 1);
      }
      case Op::kDrop:
        return Drop(&arena, command.flag);
      case Op::kSpin:
        return Spin(command);
      case Op::kCopyForever:
        CopyForever(arena);
      case Op::kMakeEvent: {
        CUresult result = cuEventCreate(&event_, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
        return result != CUDA_SUCCESS ? result : cuIpcGetEventHandle(&answer_.event, event_);
      }
      case Op::kOpenEvent:
        return cuIpcOpenEventHandle(&event_, command.event);
      case Op::kRecordEvent:
        return cuEventRecord(event_, gpu_.stream);
      case Op::kQueryEvent:
        return cuEventQuery(event_);
      case Op::kWaitEvent:
        return cuStreamWaitEvent(gpu_.second_stream, event_, 0);
      case Op::kSyncEvent:
        return cuEventSynchronize(event_);
      case Op::kQuerySecond:
        return cuStreamQuery(gpu_.second_stream);
      case Op::kAllocate:
        return Allocate(command.bytes);
      case Op::kFree:
        return Free();
      case Op::kLifeline: {
        int ends[2];
        SYS(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                       ends));  // ends[0] lives as long as the process
        reply_fd_ = ends[1];
        return CUDA_SUCCESS;
      }
      case Op::kPeer: {
        ucred peer{};
        socklen_t size = sizeof(peer);
        SYS(getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &size));
        answer_.value = std::uint64_t(peer.pid) * 2 + (Nvml().Lists(peer.pid) ? 1 : 0);
        return CUDA_SUCCESS;
      }
      case Op::kFreeBytes: {
        std::size_t free_bytes = 0;
        std::size_t all = 0;
        CUresult result = cuMemGetInfo(&free_bytes, &all);
        answer_.value = free_bytes;
        return result;
      }
      case Op::kCopyFor:
        return CopyFor(command.bytes);
      case Op::kFork:
      case Op::kForkExec:
        return Fork(command.op == Op::kForkExec, command.flag);
      case Op::kQuit:
        return cuDevicePrimaryCtxRelease(gpu_.device);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
  }

  CUresult Fill(const Arena& arena, std::uint64_t seed) const {
    CUresult result =
        Launch(gpu_.fill, 264, 256, gpu_.stream, arena.address, arena.bytes / 4, std::uint32_t(seed));
    return result != CUDA_SUCCESS ? result : cuStreamSynchronize(gpu_.stream);
  }

  CUresult Verify(const Arena& arena, std::uint64_t seed) {
    CUresult result = cuMemsetD32Async(counter_, 0, 2, gpu_.stream);
    if (result != CUDA_SUCCESS) return result;
    result = Launch(gpu_.count_wrong, 264, 256, gpu_.stream, arena.address, arena.bytes / 4,
                    std::uint32_t(seed), 0, counter_);
    if (result != CUDA_SUCCESS) return result;
    result = cuMemcpyDtoHAsync(&answer_.value, counter_, sizeof(answer_.value), gpu_.stream);
    return result != CUDA_SUCCESS ? result : cuStreamSynchronize(gpu_.stream);
  }

  void StartLongKernel() const {
    CU(Launch(gpu_.spin, 1, 1, gpu_.second_stream, CUdeviceptr(0), CUdeviceptr(0),
              std::uint64_t(500'000'000)));
  }

  CUresult Drop(Arena* arena, bool busy) {
    if (busy) StartLongKernel();
    const double start = Now();
    CUresult result = DropArena(arena);
    answer_.ms = (Now() - start) * 1e3;
    return result;
  }

  CUresult Spin(const Command& command) {
    CUdeviceptr words = 0;
    CU(cuMemHostGetDevicePointer(&words, shared_words, 0));
    const CUdeviceptr in_arena = command.seed == 0 ? 0 : arenas_[command.seed - 1].address;
    return Launch(gpu_.spin, command.flag ? 264 : 1, command.flag ? 512 : 1, gpu_.stream,
                  words + std::size_t(command.index) * 8, in_arena, command.bytes);
  }

  CUresult Allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    CUresult result = cuMemAlloc(&address, bytes);
    if (result != CUDA_SUCCESS) return result;
    allocated_.push_back(address);
    result = cuMemsetD32Async(address, ~0U, bytes / 4, gpu_.stream);
    return result != CUDA_SUCCESS ? result : cuStreamSynchronize(gpu_.stream);
  }

  CUresult Free() {
    CUresult worst = CUDA_SUCCESS;
    for (CUdeviceptr address : allocated_) {
      CUresult result = cuMemFree(address);
      if (result != CUDA_SUCCESS) worst = result;
    }
    allocated_.clear();
    return worst;
  }

  CUresult CopyFor(std::uint64_t nanoseconds) {
    constexpr std::size_t kBytes = 1 << 20;
    void* host = nullptr;
    CUdeviceptr target = 0;
    CU(cuMemAllocHost(&host, kBytes));
    CU(cuMemAlloc(&target, kBytes));
    double longest = 0;
    for (const double start = Now(); Now() - start < double(nanoseconds) * 1e-9;) {
      const double before = Now();
      CUresult result = cuMemcpyHtoDAsync(target, host, kBytes, gpu_.second_stream);
      if (result == CUDA_SUCCESS) result = cuStreamSynchronize(gpu_.second_stream);
      if (result != CUDA_SUCCESS) return result;
      longest = std::max(longest, Now() - before);
    }
    answer_.value = std::uint64_t(longest * 1e6);
    return CUDA_SUCCESS;
  }

  [[noreturn]] void CopyForever(const Arena& arena) const {
    constexpr std::size_t kBytes = 64 << 20;
    auto* host = static_cast<unsigned char*>(SharedMemory(2 * kBytes));
    std::memset(host, 1, kBytes);
    std::memset(host + kBytes, 2, kBytes);
    CU(cuMemHostRegister(host, 2 * kBytes, 0));
    for (std::size_t i = 0;; ++i)
      CU(cuMemcpyHtoDAsync(arena.address, host + i % 2 * kBytes, kBytes, gpu_.stream));
  }

  // The child outlives a killed parent, as workers of a data loader do; an alarm ends it if the experiment
  // does not.
  CUresult Fork(bool execute, bool close_all) {
    pid_t pid = SYS(fork());
    if (pid == 0) {
      alarm(30);
      if (close_all) close_range(3, ~0U, 0);
      if (execute) execlp("sleep", "sleep", "30", nullptr);
      for (;;) pause();
    }
    answer_.value = std::uint64_t(pid);
    return CUDA_SUCCESS;
  }

  int socket_;
  int fd_ = -1;
  int reply_fd_ = -1;
  Answer answer_;
  Gpu gpu_;
  CUdeviceptr counter_ = 0;
  CUevent event_ = nullptr;
  std::array<Arena, 8> arenas_;
  std::vector<CUdeviceptr> allocated_;
};

}  // namespace

std::uint64_t* SharedWords() {
  if (shared_words == nullptr)
    shared_words = static_cast<std::uint64_t*>(SharedMemory(kSharedWords * sizeof(std::uint64_t)));
  return shared_words;
}

Worker::Worker(const Place& place) {
  SharedWords();
  process_ = Spawn(place, [](int socket) { Session(socket).Run(); });
}

void Worker::Post(const Command& command, int give) {
  SendMessage(process_.socket, &command, sizeof(command), give);
}

std::optional<Answer> Worker::Await(double seconds, int* take) {
  Answer answer;
  int fd = -1;
  if (!Readable(process_.socket, seconds) || !ReceiveMessage(process_.socket, &answer, sizeof(answer), &fd))
    return std::nullopt;
  if (take != nullptr) {
    *take = fd;
  } else if (fd >= 0) {
    close(fd);
  }
  return answer;
}

Answer Worker::Call(const Command& command, int give, int* take) {
  Post(command, give);
  std::optional<Answer> answer = Await(25, take);
  if (!answer)
    Fail(__FILE__, __LINE__, "await an answer for command " + std::to_string(int(command.op)), "none came");
  return *answer;
}

}  // namespace pinfeed
