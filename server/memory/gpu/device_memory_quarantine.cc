// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/device_memory_quarantine.h"

#include <algorithm>
#include <utility>

#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/os/start_thread.h"
#include "common/spec/backend_name.h"

namespace pinfeed {
namespace {

// NVML has no news to wait for. A process without children is unlisted some 60 ms after it was killed.
constexpr std::chrono::milliseconds kFirstPause(10);
constexpr std::chrono::milliseconds kLastPause(500);

std::string Pids(const std::vector<ClientProcess>& clients) {
  std::string pids;
  for (const ClientProcess& client : clients)
    pids += (pids.empty() ? "pid " : ", ") + std::to_string(client.pid);
  return pids;
}

}  // namespace

DeviceMemoryQuarantine::DeviceMemoryQuarantine(const GpuProcesses* processes) : processes_(processes) {
  thread_ = StartThread("lingering", [this] { Run(); });
}

DeviceMemoryQuarantine::~DeviceMemoryQuarantine() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
  const MutexLock lock(mutex_);
  for (const auto& piece : pieces_) {
    if (piece->backend == Backend::kCudaIpc) piece->memory.Abandon();
  }
}

void DeviceMemoryQuarantine::Add(const std::string& gpu_uuid, Backend backend, DeviceMemory memory,
                                 BudgetLease lease, std::vector<ClientProcess> clients) {
  auto piece = std::make_shared<Piece>();
  piece->gpu_uuid = gpu_uuid;
  piece->backend = backend;
  piece->memory = std::move(memory);
  piece->bytes = lease.bytes();
  piece->lease = std::move(lease);
  piece->clients = std::move(clients);
  piece->since = Clock::now();
  spdlog::info("{} of GPU {} are kept until the work of their client there is over ({}, {})",
               ByteSize(piece->bytes), gpu_uuid, Pids(piece->clients), BackendName(backend));
  {
    const MutexLock lock(mutex_);
    pieces_.push_back(std::move(piece));
    ++added_;
  }
  changed_.NotifyAll();
}

void DeviceMemoryQuarantine::Begin(std::string what) {
  const MutexLock lock(mutex_);
  current_ = OngoingOperation{"lingering", std::move(what), Clock::now()};
}

std::optional<OngoingOperation> DeviceMemoryQuarantine::Current() const {
  const MutexLock lock(mutex_);
  return current_;
}

void DeviceMemoryQuarantine::Note(const std::string& gpu_uuid, const Status& listed) {
  if (listed.ok() && unlisted_.erase(gpu_uuid) != 0) {
    spdlog::info("the processes on GPU {} are listed again", gpu_uuid);
  } else if (!listed.ok() && unlisted_.insert(gpu_uuid).second) {
    spdlog::warn("{}; what dead clients had there by cuda-ipc is not freed until it can be told",
                 listed.message());
  }
}

bool DeviceMemoryQuarantine::MayGo(const Piece& piece) {
  const bool all_ended = std::all_of(piece.clients.begin(), piece.clients.end(),
                                     [](const ClientProcess& client) { return client.HasEnded(); });
  if (!all_ended) return false;
  // Where NVML cannot tell, only the memory that the driver keeps by itself may go.
  const bool unknown = piece.backend == Backend::kVmmFd;
  if (processes_ == nullptr) return unknown;
  Begin("asking NVML for the processes on GPU " + piece.gpu_uuid);
  const Result<std::vector<pid_t>> listed = processes_->On(piece.gpu_uuid);
  Note(piece.gpu_uuid, listed.status());
  if (!listed.ok()) return unknown;
  return std::none_of(piece.clients.begin(), piece.clients.end(), [&](const ClientProcess& client) {
    return std::find(listed->begin(), listed->end(), client.pid) != listed->end();
  });
}

void DeviceMemoryQuarantine::Run() {
  uint64_t seen = 0;
  std::chrono::milliseconds pause = kFirstPause;
  while (true) {
    std::vector<std::shared_ptr<Piece>> pieces;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && pieces_.empty()) changed_.Wait(mutex_);
      const Clock::time_point next = Clock::now() + pause;
      while (!stopping_ && added_ == seen && changed_.WaitUntil(mutex_, next)) {
      }
      if (stopping_) return;
      pause = added_ == seen ? std::min(2 * pause, kLastPause) : kFirstPause;
      seen = added_;
      pieces = pieces_;
    }
    for (std::shared_ptr<Piece>& piece : pieces) {
      if (!MayGo(*piece)) continue;
      Begin("freeing " + ByteSize(piece->bytes) + " of GPU " + piece->gpu_uuid + " (" + Pids(piece->clients) +
            ", " + BackendName(piece->backend) + ")");
      // Freed first, then no longer shown: what is not shown can be had. Nobody else touches these two.
      piece->memory = DeviceMemory();
      piece->lease = BudgetLease();
      const double seconds = std::chrono::duration<double>(Clock::now() - piece->since).count();
      spdlog::info("{} of GPU {} are back, {:.2f} s after their feed ended ({}, {})", ByteSize(piece->bytes),
                   piece->gpu_uuid, seconds, Pids(piece->clients), BackendName(piece->backend));
      const MutexLock lock(mutex_);
      pieces_.erase(std::find(pieces_.begin(), pieces_.end(), piece));
      changed_.NotifyAll();
    }
    const MutexLock lock(mutex_);
    current_.reset();
  }
}

std::vector<QuarantinedMemory> DeviceMemoryQuarantine::Snapshot(const std::string& gpu_uuid) const {
  std::vector<QuarantinedMemory> all;
  const MutexLock lock(mutex_);
  for (const auto& piece : pieces_) {
    if (piece->gpu_uuid != gpu_uuid) continue;
    QuarantinedMemory shown{piece->backend, piece->bytes, {}, 0};
    for (const ClientProcess& client : piece->clients) shown.pids.push_back(client.pid);
    shown.seconds = std::chrono::duration<double>(Clock::now() - piece->since).count();
    all.push_back(std::move(shown));
  }
  return all;
}

uint64_t DeviceMemoryQuarantine::QuarantinedBytes(const std::string& gpu_uuid) const {
  uint64_t bytes = 0;
  const MutexLock lock(mutex_);
  for (const auto& piece : pieces_) {
    if (piece->gpu_uuid == gpu_uuid && piece->backend == Backend::kCudaIpc) bytes += piece->bytes;
  }
  return bytes;
}

void DeviceMemoryQuarantine::AwaitNone(std::chrono::steady_clock::time_point deadline) {
  const MutexLock lock(mutex_);
  while (!pieces_.empty() && changed_.WaitUntil(mutex_, deadline)) {
  }
}

}  // namespace pinfeed
