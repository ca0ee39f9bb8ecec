// SPDX-License-Identifier: Apache-2.0
//
// The GPU as one process of an experiment sees it: primary context, kernels, arenas by both ways of sharing.
// In: offers from other processes. Out: mapped memory. Nothing is freed on exit: the driver's own clean-up is
// what the experiments study.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "experiment.h"

namespace pinfeed {

constexpr std::size_t kGranularity = 2 << 20;  // sizes of arenas are multiples of it

enum class Backend { kVmmFd, kLegacy };

inline const char* BackendName(Backend backend) {
  return backend == Backend::kVmmFd ? "vmm-fd" : "cuda-ipc";
}

// Reads the compiled kernels into memory. Called before any process moves to a place where the file cannot be
// read.
void LoadKernelImage();

class Gpu {
 public:
  Gpu();
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUstream second_stream = nullptr;
  CUfunction fill = nullptr;
  CUfunction count_wrong = nullptr;
  CUfunction spin = nullptr;
  CUfunction burn = nullptr;
};

template <typename... Args>
CUresult Launch(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream, Args... args) {
  void* pointers[] = {&args...};
  return cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, nullptr);
}

struct Arena {
  Backend backend = Backend::kVmmFd;
  bool imported = false;
  std::size_t bytes = 0;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle allocation = 0;
};

// What crosses the process border; with the vmm-fd backend a descriptor goes beside it.
struct Offer {
  Backend backend = Backend::kVmmFd;
  std::size_t bytes = 0;
  CUipcMemHandle legacy{};
};

Arena ExportArena(const Gpu& gpu, Backend backend, std::size_t bytes, Offer* offer, int* fd);
CUresult ImportArena(const Gpu& gpu, const Offer& offer, int fd, bool read_only, Arena* arena);
CUresult DropArena(Arena* arena);

// Of NVML the four calls that the experiments need, loaded at run time.
class Nvml {
 public:
  Nvml();
  std::uint64_t UsedBytes() const;
  // Whether the list of compute processes has `pid`; with `bytes`, what it is said to hold.
  bool Lists(int pid, std::uint64_t* bytes = nullptr) const;

 private:
  void* library_;
  void* device_ = nullptr;
};

}  // namespace pinfeed
