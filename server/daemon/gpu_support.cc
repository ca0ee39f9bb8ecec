// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/gpu_support.h"

#include <utility>

#include "common/base/log.h"
#include "common/os/host_limits.h"

namespace pinfeed {

Result<GpuSupport> OpenGpus(const Config& config, MemoryBudget& pool,
                            std::function<void(const Status&)> on_failure,
                            std::function<void(uint64_t bytes, uint64_t total)> on_progress) {
  if (config.gpus == "off") return GpuSupport{nullptr, "host (gpus = off)"};
  const DeviceOptions options{.pinned_bytes = config.pinned_bytes.Of(pool.capacity_bytes()),
                              .gpu_bytes = config.gpu_bytes,
                              .user_pinned_bytes = config.user_pinned_bytes,
                              .user_gpu_bytes = config.user_gpu_bytes,
                              .threads = UsableCpus(AffinityCpus()),
                              .on_failure = std::move(on_failure),
                              .on_progress = std::move(on_progress)};
  Result<std::unique_ptr<DeviceArenas>> devices = MakeDeviceArenas(options, pool);
  if (devices.ok()) return GpuSupport{*std::move(devices), "cuda"};
  const Status reason = devices.status();
  // Our own limits have no native error number; they mean that the configuration asks for too much.
  if (reason.code() == Code::kResourceExhausted && reason.native_error() == 0)
    return InvalidArgument("gpus: " + reason.message());
  if (config.gpus == "on" || reason.code() != Code::kUnavailable) return reason.WithContext("gpus");
  spdlog::info("batches stay in host memory: {}", reason.message());
  return GpuSupport{nullptr, "host (" + reason.message() + ")"};
}

}  // namespace pinfeed
