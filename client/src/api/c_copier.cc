// SPDX-License-Identifier: Apache-2.0
// The functions of pinfeed.h that copy without a daemon. They check the arguments; DeviceCopier does the
// work.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/copies/device_copier.h"
#include "client/src/api/c_api.h"
#include "client/src/base/fork_guard.h"

struct pf_copier {
  std::unique_ptr<pinfeed::DeviceCopier> copier;
  pinfeed::ForkGuard fork_guard;
};

namespace pinfeed {
namespace {

Result<pf_copier_options> ReadOptions(const pf_copier_options* given) {
  pf_copier_options options;
  pf_copier_options_init(&options, sizeof(options));
  RETURN_IF_ERROR(ReadStruct(given, &options, "options", "pf_copier_options_init"));
  if (options.threads > 1024)
    return InvalidArgument("options.threads is " + std::to_string(options.threads) + "; at most 1024 help");
  if (options.ring_bytes > DeviceCopier::kMaxRingBytes) {
    return InvalidArgument("options.ring_bytes is " + std::to_string(options.ring_bytes) + "; at most " +
                           std::to_string(DeviceCopier::kMaxRingBytes) + " may be page-locked");
  }
  return options;
}

Status CheckCopier(const pf_copier* copier) {
  if (copier == nullptr) return InvalidArgument("copier is NULL");
  if (!copier->fork_guard.InCreatorProcess()) {
    return FailedPrecondition(
        "this copier belongs to the parent process, whose GPU a forked child cannot use; start the process "
        "with spawn (with Python's multiprocessing: get_context(\"spawn\"))");
  }
  return OkStatus();
}

bool Overflows(uint64_t address, uint64_t bytes) {
  return bytes > std::numeric_limits<uint64_t>::max() - address;
}

Result<std::vector<HostCopy>> ReadCopies(const pf_host_copy* copies, uint64_t count) {
  if (copies == nullptr && count != 0) return InvalidArgument("copies is NULL");
  std::vector<HostCopy> read;
  read.reserve(count);
  uint64_t total = 0;
  for (const pf_host_copy& copy : std::span(copies, count)) {
    const auto source = reinterpret_cast<uint64_t>(copy.source);
    const auto target = reinterpret_cast<uint64_t>(copy.target);
    const char* fault = nullptr;
    if (copy.span < copy.bytes) fault = "its span is less than its bytes";
    if (copy.bytes != 0 && source == 0) fault = "its source is NULL";
    if (copy.span != 0 && target == 0) fault = "its target is NULL";
    if (Overflows(source, copy.bytes) || Overflows(target, copy.span) || Overflows(total, copy.span))
      fault = "its bytes do not fit in the address space";
    if (fault != nullptr) {
      return InvalidArgument("copies[" + std::to_string(read.size()) + "] of " + std::to_string(copy.bytes) +
                             " bytes: " + fault);
    }
    total += copy.span;
    read.push_back({static_cast<const std::byte*>(copy.source), copy.bytes, target, copy.span});
  }
  return read;
}

}  // namespace
}  // namespace pinfeed

using namespace pinfeed;  // NOLINT(google-build-using-namespace): this file is the border of the namespace

extern "C" {

void pf_copier_options_init(pf_copier_options* options, size_t size) {
  InitStruct(options, size, pf_copier_options{});
}

pf_result pf_copier_open(const pf_copier_options* options, pf_copier** copier) {
  return Guarded([&]() -> Status {
    if (copier == nullptr) return InvalidArgument("copier is NULL; give the address of a pf_copier*");
    *copier = nullptr;
    ASSIGN_OR_RETURN(const pf_copier_options read, ReadOptions(options));
    const DeviceCopier::Options wanted{.threads = read.threads, .ring_bytes = read.ring_bytes};
    // A child must not inherit the loader's locks from a thread that it lacks.
    ASSIGN_OR_RETURN(const NoForkScope no_fork,
                     NoForkScope::Enter(std::chrono::steady_clock::time_point::max()));
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceCopier> made, MakeDeviceCopier(read.device, wanted));
    *copier = new pf_copier{std::move(made), {}};
    return OkStatus();
  });
}

void pf_copier_close(pf_copier* copier) {
  (void)Guarded([&]() -> Status {
    if (copier == nullptr) return OkStatus();
    // A forked child has neither the threads nor the context.
    if (!copier->fork_guard.InCreatorProcess()) (void)copier->copier.release();
    delete copier;
    return OkStatus();
  });
}

pf_result pf_copier_stream_state(pf_copier* copier, void* stream, pf_stream_state* state) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckCopier(copier));
    if (state == nullptr) return InvalidArgument("state is NULL");
    ASSIGN_OR_RETURN(const StreamState read, copier->copier->State(stream));
    *state = static_cast<pf_stream_state>(read);
    return OkStatus();
  });
}

pf_result pf_copy_to_device(pf_copier* copier, const pf_host_copy* copies, uint64_t count, void* stream,
                            int non_blocking, uint64_t* reading) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckCopier(copier));
    if (reading != nullptr) *reading = 0;
    ASSIGN_OR_RETURN(const std::vector<HostCopy> read, ReadCopies(copies, count));
    ASSIGN_OR_RETURN(const uint32_t left, copier->copier->Copy(read, stream, non_blocking == 0));
    if (reading != nullptr) *reading = left;
    return OkStatus();
  });
}

}  // extern "C"
