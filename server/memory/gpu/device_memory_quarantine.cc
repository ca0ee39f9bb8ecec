// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/device_memory_quarantine.h"

#include <algorithm>
#include <utility>

#include "common/base/byte_size.h"
#include "common/base/join.h"
#include "common/base/log.h"
#include "common/os/start_thread.h"
#include "common/spec/names.h"

namespace pinfeed {
namespace {

// NVML offers no notification, so the thread polls. A process without children leaves the list about 60 ms
// after it was killed.
constexpr std::chrono::milliseconds kFirstPause(10);
constexpr std::chrono::milliseconds kMaxPause(500);

std::string Pids(const std::vector<ClientProcess>& clients) {
  return "pid " + JoinTexts(clients, ", ", [](const ClientProcess& one) { return std::to_string(one.pid); });
}

}  // namespace

DeviceMemoryQuarantine::DeviceMemoryQuarantine(const GpuProcesses* processes) : processes_(processes) {
  thread_ = StartThread("gpu-quarantine", [this] { Run(); });
}

DeviceMemoryQuarantine::~DeviceMemoryQuarantine() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
  const MutexLock lock(mutex_);
  for (const auto& entry : entries_) {
    if (entry->backend == Backend::kCudaIpc) entry->memory.Abandon();
  }
}

void DeviceMemoryQuarantine::Add(const std::string& gpu_uuid, Backend backend, DeviceMemory memory,
                                 BudgetLease lease, std::vector<ClientProcess> clients) {
  auto entry = std::make_shared<Entry>();
  entry->gpu_uuid = gpu_uuid;
  entry->backend = backend;
  entry->memory = std::move(memory);
  entry->bytes = lease.bytes();
  entry->lease = std::move(lease);
  entry->clients = std::move(clients);
  entry->since = Clock::now();
  spdlog::info("{} of GPU {} are quarantined until the client's work there has ended ({}, {})",
               ByteSize(entry->bytes), gpu_uuid, Pids(entry->clients), BackendName(backend));
  {
    const MutexLock lock(mutex_);
    entries_.push_back(std::move(entry));
    ++added_;
  }
  changed_.NotifyAll();
}

void DeviceMemoryQuarantine::SetOperation(std::string what) {
  const MutexLock lock(mutex_);
  current_ = OngoingOperation{"gpu-quarantine", std::move(what), Clock::now()};
}

std::optional<OngoingOperation> DeviceMemoryQuarantine::CurrentOperation() const {
  const MutexLock lock(mutex_);
  return current_;
}

void DeviceMemoryQuarantine::LogListing(const std::string& gpu_uuid, const Status& listed) {
  if (listed.ok() && unlisted_.erase(gpu_uuid) != 0) {
    spdlog::info("the processes on GPU {} are listed again", gpu_uuid);
  } else if (!listed.ok() && unlisted_.insert(gpu_uuid).second) {
    spdlog::warn(
        "{}; cuda-ipc memory of dead clients on that GPU stays allocated until the list is available",
        listed.message());
  }
}

bool DeviceMemoryQuarantine::CanFree(const Entry& entry) {
  const bool all_ended = std::all_of(entry.clients.begin(), entry.clients.end(),
                                     [](const ClientProcess& client) { return client.HasEnded(); });
  if (!all_ended) return false;
  // Without NVML's list, only memory that the driver itself keeps alive may be released.
  const bool free_if_unknown = entry.backend == Backend::kVmmFd;
  if (processes_ == nullptr) return free_if_unknown;
  SetOperation("asking NVML for the processes on GPU " + entry.gpu_uuid);
  const Result<std::vector<pid_t>> listed = processes_->On(entry.gpu_uuid);
  LogListing(entry.gpu_uuid, listed.status());
  if (!listed.ok()) return free_if_unknown;
  return std::none_of(entry.clients.begin(), entry.clients.end(), [&](const ClientProcess& client) {
    return std::find(listed->begin(), listed->end(), client.pid) != listed->end();
  });
}

void DeviceMemoryQuarantine::Run() {
  uint64_t seen = 0;
  std::chrono::milliseconds pause = kFirstPause;
  while (true) {
    std::vector<std::shared_ptr<Entry>> entries;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && entries_.empty()) changed_.Wait(mutex_);
      const Clock::time_point next = Clock::now() + pause;
      while (!stopping_ && added_ == seen && changed_.WaitUntil(mutex_, next)) {
      }
      if (stopping_) return;
      pause = added_ == seen ? std::min(2 * pause, kMaxPause) : kFirstPause;
      seen = added_;
      entries = entries_;
    }
    for (std::shared_ptr<Entry>& entry : entries) {
      if (!CanFree(*entry)) continue;
      SetOperation("freeing " + ByteSize(entry->bytes) + " of GPU " + entry->gpu_uuid + " (" +
                   Pids(entry->clients) + ", " + BackendName(entry->backend) + ")");
      // Free the memory before removing the entry: memory that is no longer reported can be allocated again.
      // Only this thread touches these two fields.
      entry->memory = DeviceMemory();
      entry->lease = BudgetLease();
      const double seconds = std::chrono::duration<double>(Clock::now() - entry->since).count();
      spdlog::info("{} of GPU {} are freed, {:.2f} s after their feed ended ({}, {})", ByteSize(entry->bytes),
                   entry->gpu_uuid, seconds, Pids(entry->clients), BackendName(entry->backend));
      const MutexLock lock(mutex_);
      entries_.erase(std::find(entries_.begin(), entries_.end(), entry));
      changed_.NotifyAll();
    }
    const MutexLock lock(mutex_);
    current_.reset();
  }
}

std::vector<QuarantinedMemory> DeviceMemoryQuarantine::Snapshot(const std::string& gpu_uuid) const {
  std::vector<QuarantinedMemory> all;
  const MutexLock lock(mutex_);
  for (const auto& entry : entries_) {
    if (entry->gpu_uuid != gpu_uuid) continue;
    QuarantinedMemory shown{entry->backend, entry->bytes, {}, 0};
    for (const ClientProcess& client : entry->clients) shown.pids.push_back(client.pid);
    shown.seconds = std::chrono::duration<double>(Clock::now() - entry->since).count();
    all.push_back(std::move(shown));
  }
  return all;
}

uint64_t DeviceMemoryQuarantine::QuarantinedBytes(const std::string& gpu_uuid) const {
  uint64_t bytes = 0;
  const MutexLock lock(mutex_);
  for (const auto& entry : entries_) {
    if (entry->gpu_uuid == gpu_uuid && entry->backend == Backend::kCudaIpc) bytes += entry->bytes;
  }
  return bytes;
}

void DeviceMemoryQuarantine::AwaitNone(std::chrono::steady_clock::time_point deadline) {
  const MutexLock lock(mutex_);
  while (!entries_.empty() && changed_.WaitUntil(mutex_, deadline)) {
  }
}

}  // namespace pinfeed
