// SPDX-License-Identifier: Apache-2.0
// Whose resident samples give way to a feed whose memory a GPU lacks.
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/loading/resident_table.h"
#include "tests/unit/session/opener_fixture.h"

namespace pinfeed {
namespace {

using Room = MemoryBudget::Room;

constexpr char kGpu[] = "GPU-1", kOtherGpu[] = "GPU-2";
constexpr uid_t kOther = 1001;

// Purpose: a GPU without memory for any arena. `room` says who could make some.
class FullGpu final : public DeviceArenas {
 public:
  Status CheckFeeds(const std::string& /*gpu_uuid*/) const override { return OkStatus(); }
  Result<std::unique_ptr<Arena>> Make(const std::string& /*gpu_uuid*/, Backend /*backend*/,
                                      Sharing /*sharing*/, const BatchLayout& /*layout*/,
                                      uint32_t /*slot_count*/, uid_t /*user*/) override {
    return lack;
  }
  Result<std::unique_ptr<Arena>> MakeResident(const std::string& /*gpu_uuid*/, const BatchLayout& /*layout*/,
                                              uid_t /*user*/) override {
    return lack;
  }
  Room RoomFor(const std::string& gpu_uuid, uint64_t /*bytes*/, uid_t user) const override {
    EXPECT_EQ(gpu_uuid, kGpu);
    EXPECT_EQ(user, ::geteuid());
    return room;
  }
  Status CheckIpcClient(const std::string& /*gpu_uuid*/, pid_t /*pid*/) const override { return OkStatus(); }
  void AwaitEmptyQuarantine(std::chrono::steady_clock::time_point /*deadline*/) override {}
  std::vector<GpuSnapshot> Snapshot() const override { return {}; }
  std::optional<OngoingOperation> CurrentOperation() const override { return std::nullopt; }
  std::map<uid_t, UserBytes> UsedByUser() const override { return {}; }
  UserBytes MaxPerUser() const override { return {}; }

  Room room = Room::kFree;
  Status lack = ResourceExhausted("there is no more");
};

class AwaitMemoryTest : public OpenerTest {
 protected:
  AwaitMemoryTest() {
    table_.Start();
    residents_.Start();
  }
  ~AwaitMemoryTest() override {
    residents_.Stop();
    table_.Stop();
  }

  // Samples that nobody uses.
  void AddIdle(const std::string& gpu, uid_t owner) {
    const std::shared_ptr<const Dataset> dataset = std::make_shared<NumberDataset>(8);
    ResidentPlan plan = PlanResident(Spec(8), *dataset).value();
    EXPECT_OK(residents_.Acquire({owner, gpu, dataset, plan.load}, [&] {
      auto loader = SampleLoader::Create(dataset, plan.load).value();
      const BatchLayout layout = BatchLayout::Create(loader->outputs(), plan.load.batch_size).value();
      Sampler sampler = Sampler::Create(plan.load, plan.load.batch_size).value();
      auto producer = std::make_unique<NativeBatchProducer>(std::move(loader), sampler, plan.load, layout,
                                                            *workers_, readers_);
      return Result<std::shared_ptr<ResidentData>>(std::make_shared<ResidentData>(
          ResidentData::Parts{dataset, plan, gpu, HostArena::Create(layout, 3, false, pool_, owner).value(),
                              std::move(producer), sampler, owner}));
    }));
  }
  // Opens a feed on the GPU while it is full. Returns whose samples are left: on it the user's and another's,
  // and the user's on another one.
  std::map<uid_t, uint64_t> LeftAfterOpen() {
    AddIdle(kGpu, own_);
    AddIdle(kGpu, kOther);
    AddIdle(kOtherGpu, own_);
    const uint64_t bytes = pool_.used_bytes() / 3;
    OpenFeedArguments arguments;
    arguments.spec = Spec(8);
    arguments.spec.backend = Backend::kVmmFd;
    arguments.gpu_uuid = kGpu;
    const Peer peer{.pid = ::getpid(), .uid = own_, .gid = 1};
    EXPECT_EQ(on_gpu_.Open(peer, arguments, std::make_shared<NumberDataset>(80)).status().code(),
              Code::kResourceExhausted);
    std::map<uid_t, uint64_t> left = pool_.used_by_user();
    for (const char* gpu : {kGpu, kOtherGpu})
      residents_.FreeIdle(gpu, std::nullopt, std::chrono::steady_clock::now() + std::chrono::hours(1));
    for (auto& [user, used] : left) used /= bytes;
    return left;
  }

  const uid_t own_ = ::geteuid();
  FullGpu gpu_;
  ResidentTable residents_{std::chrono::hours(1)};
  const FeedOpener on_gpu_{PartsWith(&gpu_, &residents_)};
};

using Left = std::map<uid_t, uint64_t>;

TEST_F(AwaitMemoryTest, WhoHasTheMemoryThatIsLackingGivesWay) {
  gpu_.room = Room::kOfAnyUser;
  EXPECT_EQ(LeftAfterOpen(), (Left{{own_, 1}}));
  gpu_.room = Room::kOfUser;
  EXPECT_EQ(LeftAfterOpen(), (Left{{own_, 1}, {kOther, 1}}));
  gpu_.room = Room::kNever;
  EXPECT_EQ(LeftAfterOpen(), (Left{{own_, 2}, {kOther, 1}}));
}

TEST_F(AwaitMemoryTest, WhatTheBudgetDoesNotLackConcernsOthersOnlyIfTheDriverLacksIt) {
  gpu_.room = Room::kFree;
  EXPECT_EQ(LeftAfterOpen(), (Left{{own_, 1}, {kOther, 1}})) << "pinned memory";
  gpu_.lack = Status(Code::kResourceExhausted, "allocate: out of memory", 2);
  EXPECT_EQ(LeftAfterOpen(), (Left{{own_, 1}}));
}

}  // namespace
}  // namespace pinfeed
