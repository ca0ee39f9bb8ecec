// SPDX-License-Identifier: Apache-2.0
// Memory of clients that died, with real processes over the stand-ins for the driver and NVML.
#include "server/memory/gpu/device_memory_quarantine.h"

#include <spdlog/sinks/ostream_sink.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "tests/unit/memory/gpu/stand_in_peer.h"

namespace pinfeed {
namespace {

constexpr uint64_t kBytes = uint64_t{2} << 20;

std::chrono::steady_clock::time_point In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

class DeviceMemoryQuarantineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::testing::internal::InDeathTestChild()) return;  // which has its own driver
    ASSERT_OK_AND_ASSIGN(device_, CudaDevice::Open(0));
    ASSERT_OK_AND_ASSIGN(processes_, GpuProcesses::Load());
  }
  void Quarantine(DeviceMemoryQuarantine& quarantine, Backend backend, const ClientProcess& client) {
    DeviceMemory memory;
    if (backend == Backend::kCudaIpc) {
      ASSERT_OK_AND_ASSIGN(memory, DeviceMemory::Allocate(device_, kBytes));
    }
    ASSERT_OK_AND_ASSIGN(BudgetLease lease, pool_.Reserve(kBytes));
    quarantine.Add(device_->uuid(), backend, std::move(memory), std::move(lease), {client});
  }
  uint64_t FreeBytes() const {
    const auto scope = device_->Enter();
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(device_->driver().cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }

  std::shared_ptr<const CudaDevice> device_;
  std::unique_ptr<const GpuProcesses> processes_;
  MemoryBudget pool_{4 * kBytes};
};

// A process with a context on the GPU: its number comes when it has one.
ClientProcess ClientOf(const Peer& peer) {
  IpcHandle handle;
  PF_CHECK(::read(peer.socket(), handle.data(), handle.size()) == ssize_t{sizeof handle}, "a handle comes");
  return ClientProcess::Open(peer.pid()).value();
}

TEST_F(DeviceMemoryQuarantineTest, ProcessesOnTheGpuAreListedUntilTheyEnd) {
  Peer peer("lend-handle");
  const ClientProcess client = ClientOf(peer);
  ASSERT_OK_AND_ASSIGN(const std::vector<pid_t> before, processes_->On(device_->uuid()));
  EXPECT_THAT(before, Contains(client.pid));
  EXPECT_FALSE(client.HasEnded());
  EXPECT_EQ(peer.Dismiss(), 0);
  EXPECT_TRUE(client.HasEnded());
  ASSERT_OK_AND_ASSIGN(const std::vector<pid_t> after, processes_->On(device_->uuid()));
  EXPECT_THAT(after, Not(Contains(client.pid)));
  EXPECT_EQ(processes_->On("GPU-none").status().code(), Code::kUnavailable);
}

TEST_F(DeviceMemoryQuarantineTest, MemoryStaysWhileItsClientLivesAndIsFreedThen) {
  const uint64_t free_before = FreeBytes();
  DeviceMemoryQuarantine quarantine(processes_.get());
  Peer peer("lend-handle");
  Quarantine(quarantine, Backend::kCudaIpc, ClientOf(peer));
  quarantine.AwaitNone(In(std::chrono::milliseconds(100)));
  ASSERT_EQ(quarantine.Snapshot(device_->uuid()).size(), 1U);
  EXPECT_EQ(quarantine.QuarantinedBytes(device_->uuid()), kBytes);
  EXPECT_EQ(pool_.used_bytes(), kBytes);
  EXPECT_EQ(FreeBytes(), free_before - kBytes);
  EXPECT_EQ(peer.Dismiss(), 0);
  quarantine.AwaitNone(In(std::chrono::seconds(30)));
  EXPECT_TRUE(quarantine.Snapshot(device_->uuid()).empty());
  EXPECT_EQ(pool_.used_bytes(), 0U);
  EXPECT_EQ(FreeBytes(), free_before);
}

// What a pidfd does not tell: the driver goes on with a dead process's work as long as a child has its files.
TEST_F(DeviceMemoryQuarantineTest, MemoryOfAClientThatHasEndedStaysWhileAForkedChildHasTheGpu) {
  for (const Backend backend : {Backend::kCudaIpc, Backend::kVmmFd}) {
    DeviceMemoryQuarantine quarantine(processes_.get());
    Peer peer("leave-child");
    const ClientProcess client = ClientOf(peer);
    EXPECT_EQ(peer.Wait(), 0);
    ASSERT_TRUE(client.HasEnded());
    Quarantine(quarantine, backend, client);
    quarantine.AwaitNone(In(std::chrono::milliseconds(200)));
    EXPECT_EQ(pool_.used_bytes(), kBytes);
    ASSERT_EQ(quarantine.Snapshot(device_->uuid()).size(), 1U);
    EXPECT_THAT(quarantine.Snapshot(device_->uuid())[0].pids, ElementsAre(client.pid));
    peer.HangUp();
    quarantine.AwaitNone(In(std::chrono::seconds(30)));
    EXPECT_EQ(pool_.used_bytes(), 0U);
  }
}

// By every look, but told of by the first alone.
TEST_F(DeviceMemoryQuarantineTest, ListThatCannotBeHadIsToldOfOnce) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  {
    Peer peer("lend-handle");
    const ClientProcess client = ClientOf(peer);
    EXPECT_EQ(peer.Dismiss(), 0);
    DeviceMemoryQuarantine quarantine(processes_.get());
    ASSERT_OK_AND_ASSIGN(BudgetLease lease, pool_.Reserve(kBytes));
    quarantine.Add("GPU-none", Backend::kCudaIpc, DeviceMemory(), std::move(lease), {client});
    for (int look = 0; look < 2; ++look) {  // what comes behind it is looked at behind it, and goes
      ASSERT_NO_FATAL_FAILURE(Quarantine(quarantine, Backend::kVmmFd, client));
      while (!quarantine.Snapshot(device_->uuid()).empty()) std::this_thread::yield();
    }
    EXPECT_EQ(pool_.used_bytes(), kBytes);
  }
  spdlog::set_default_logger(before);
  const std::string text = log.str();
  const size_t told = text.find(
      "list the processes on GPU GPU-none: NVML: an error of the stand-in; cuda-ipc memory of dead");
  EXPECT_NE(told, std::string::npos) << text;
  EXPECT_EQ(text.find("GPU-none: NVML", told + 30), std::string::npos) << text;
}

// Another process, since the call never returns.
TEST_F(DeviceMemoryQuarantineTest, FreeThatHangsIsNamed) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ::alarm(20);
        Peer peer("lend-handle");
        const ClientProcess client = ClientOf(peer);
        ::setenv("PINFEED_STAND_IN_FAIL", "cuMemFree:1:hang", 1);  // not the peer's
        device_ = *CudaDevice::Open(0);
        processes_ = *GpuProcesses::Load();
        auto* const quarantine =
            new DeviceMemoryQuarantine(processes_.get());  // never destroyed: that would wait
        Quarantine(*quarantine, Backend::kCudaIpc, client);
        (void)peer.Dismiss();
        const std::string expected =
            "freeing 2 MiB of GPU " + device_->uuid() + " (pid " + std::to_string(client.pid) + ", cuda-ipc)";
        for (std::optional<OngoingOperation> at; !at || at->what != expected;
             at = quarantine->CurrentOperation())
          std::this_thread::yield();
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// Nothing but the list proves it.
TEST_F(DeviceMemoryQuarantineTest, WithoutAListOnlyWhatTheDriverKeepsMayGo) {
  Peer peer("lend-handle");
  const ClientProcess client = ClientOf(peer);
  EXPECT_EQ(peer.Dismiss(), 0);
  const uint64_t free_before = FreeBytes();
  {
    DeviceMemoryQuarantine quarantine(nullptr);
    Quarantine(quarantine, Backend::kVmmFd, client);
    quarantine.AwaitNone(In(std::chrono::seconds(30)));
    EXPECT_EQ(pool_.used_bytes(), 0U);
    Quarantine(quarantine, Backend::kCudaIpc, client);
    quarantine.AwaitNone(In(std::chrono::milliseconds(100)));
    EXPECT_EQ(pool_.used_bytes(), kBytes);
  }
  // Somebody may still have it open: it goes with this process.
  EXPECT_EQ(pool_.used_bytes(), 0U);
  EXPECT_EQ(FreeBytes(), free_before - kBytes);
  // And so does the context, whose end would take it along.
  const CudaDriver& driver = device_->driver();
  CUcontext context = device_->context();
  device_.reset();
  ASSERT_EQ(driver.cuCtxPushCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(driver.cuCtxPopCurrent(&context), CUDA_SUCCESS);
}

}  // namespace
}  // namespace pinfeed
