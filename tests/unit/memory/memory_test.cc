// SPDX-License-Identifier: Apache-2.0
// The accounting of the pool, sealed shared memory and the control pages.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/memfd.h"
#include "server/memory/client_process.h"
#include "server/memory/control_pages.h"
#include "server/memory/memory_budget.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(MemoryBudgetTest, LeasesAreChargedAndComeBack) {
  MemoryBudget pool(100);
  {
    auto first = pool.Reserve(60);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(pool.used_bytes(), 60U);
    EXPECT_THAT(pool.Reserve(41),
                StatusIs(Code::kResourceExhausted,
                         AllOf(HasSubstr("reserve 41 bytes"), HasSubstr("40 bytes of its 100 B are free"))));
    EXPECT_THAT(pool.Reserve(UINT64_MAX),
                StatusIs(Code::kResourceExhausted,
                         AllOf(HasSubstr("16 EiB (18446744073709551615 bytes)"),
                               HasSubstr("has 100 bytes in total"), HasSubstr("more pool_bytes"))));
    auto second = pool.Reserve(40);
    EXPECT_TRUE(second.ok());
    EXPECT_EQ(pool.used_bytes(), 100U);
  }
  EXPECT_EQ(pool.used_bytes(), 0U);
}

TEST(MemoryBudgetTest, MovedFromLeaseIsEmptyAndSelfMoveKeeps) {
  MemoryBudget pool(100);
  BudgetLease lease = std::move(pool.Reserve(10)).value();
  BudgetLease other = std::move(lease);
  EXPECT_EQ(lease.bytes(), 0U);  // NOLINT(bugprone-use-after-move): what is tested
  BudgetLease& self = other;
  other = std::move(self);
  EXPECT_EQ(other.bytes(), 10U);
  EXPECT_EQ(pool.used_bytes(), 10U);
  other = BudgetLease();
  EXPECT_EQ(pool.used_bytes(), 0U);
}

TEST(MemoryBudgetDeathTest, OutlivingThePoolIsABug) {
  EXPECT_DEATH(
      {
        BudgetLease lease;
        MemoryBudget pool(10);
        lease = std::move(pool.Reserve(1)).value();
      },
      "leases are out");
}

TEST(MemfdTest, CannotChangeItsSize) {
  const auto fd = CreateMemfd("test", 8192);
  ASSERT_TRUE(fd.ok());
  EXPECT_NE(::ftruncate(fd->get(), 4096), 0);
  EXPECT_NE(::ftruncate(fd->get(), 16384), 0);
  EXPECT_TRUE(CheckSealedSize(fd->get(), 8192).ok());
  EXPECT_THAT(CheckSealedSize(fd->get(), 4096), StatusIs(Code::kInvalidArgument, HasSubstr("8192")));
}

TEST(MemfdTest, AnUnsealedOrShortFileIsRefused) {
  const UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fd.get(), 4096), 0);
  EXPECT_THAT(CheckSealedSize(fd.get(), 4096), StatusIs(Code::kInvalidArgument, HasSubstr("not sealed")));
  EXPECT_THAT(Mapping::Map(fd.get(), 8192, Access::kReadOnly, false),
              StatusIs(Code::kInvalidArgument, HasSubstr("has 4096")));
}

TEST(MemfdTest, SealedAgainstWritersItCanOnlyBeRead) {
  const auto fd = CreateMemfd("test", 4096);
  const auto writer = Mapping::Map(fd->get(), 4096, Access::kReadWrite, true);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(SealAgainstNewWriters(fd->get()).ok());
  EXPECT_FALSE(Mapping::Map(fd->get(), 4096, Access::kReadWrite, false).ok());
  const auto reader = Mapping::Map(fd->get(), 4096, Access::kReadOnly, false);
  ASSERT_TRUE(reader.ok());
  EXPECT_NE(::mprotect(reader->data(), 4096, PROT_READ | PROT_WRITE), 0);
  writer->data()[17] = std::byte{42};  // the mapping from before the seal still writes
  EXPECT_EQ(reader->data()[17], std::byte{42});
}

TEST(MemoryBudgetTest, ALimitThatIsNoneIsNotWhatStandsInTheWay) {
  MemoryBudget pool(100, 100, MemoryBudget::Names());
  const auto first = pool.Reserve(50, 7);
  EXPECT_THAT(pool.Reserve(51, 7), StatusIs(Code::kResourceExhausted,
                                            AllOf(HasSubstr("50 bytes of its 100 B are free"),
                                                  HasSubstr("more pool_bytes"), Not(HasSubstr("user_")))));
}

TEST(MemoryBudgetTest, UsersHaveAShareAndHearWhatToDo) {
  MemoryBudget pool(100, 60, MemoryBudget::Names());
  auto first = pool.Reserve(50, 7);
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(pool.Reserve(11, 7),
              StatusIs(Code::kResourceExhausted,
                       AllOf(HasSubstr("user_pool_bytes: user 7 has 50 bytes"), HasSubstr("11 bytes more"),
                             HasSubstr("60 bytes that a user may have"), HasSubstr("close a feed"))));
  EXPECT_THAT(pool.Reserve(UINT64_MAX - 10, 7), StatusIs(Code::kResourceExhausted));
  auto other = pool.Reserve(40, 8);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(pool.used_by_user(), (std::map<uid_t, uint64_t>{{7, 50}, {8, 40}}));
  first = BudgetLease();
  BudgetLease moved = std::move(other).value();
  EXPECT_EQ(pool.used_by_user(), (std::map<uid_t, uint64_t>{{8, 40}}));
  moved = BudgetLease();
  EXPECT_EQ(pool.RoomFor(60, 8), MemoryBudget::Room::kFree);
  const auto again = pool.Reserve(50, 8);
  EXPECT_EQ(pool.RoomFor(11, 8), MemoryBudget::Room::kOfUser);
  EXPECT_EQ(pool.RoomFor(51, 9), MemoryBudget::Room::kOfAnyUser);
  EXPECT_EQ(pool.RoomFor(61, 9), MemoryBudget::Room::kNever) << "no user may have so much";
  EXPECT_EQ(pool.RoomFor(100, std::nullopt), MemoryBudget::Room::kOfAnyUser);
  EXPECT_EQ(pool.RoomFor(101, std::nullopt), MemoryBudget::Room::kNever);
}

TEST(MemoryBudgetTest, TheDaemonItselfHasNoLimit) {
  MemoryBudget pool(100, 60, MemoryBudget::Names());
  EXPECT_TRUE(pool.Reserve(100).ok()) << "the daemon's own is bounded by the pool alone";
}

TEST(ClientProcessTest, OfManyWithMemoryThoseThatHaveEndedAreForgotten) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  const ClientProcess ended = ClientProcess::Open(child).value();
  while (!ended.HasEnded()) std::this_thread::yield();  // under the watchdog
  std::vector<ClientProcess> processes;
  for (int i = 0; i < 64; ++i) AddRemainingMapper(ended, processes);
  EXPECT_EQ(processes.size(), 64U);
  AddRemainingMapper(ClientProcess::Open(::getpid()).value(), processes);
  ASSERT_EQ(processes.size(), 1U);
  EXPECT_EQ(processes.front().pid, ::getpid());
  ::waitpid(child, nullptr, 0);
}

// The client's view of the pages, mapped as a client would.
struct ClientView {
  explicit ClientView(const ControlPages& pages)
      : publish(Mapping::Map(pages.publish_fd(), kPublishPageBytes, Access::kReadOnly, false).value()),
        release(Mapping::Map(pages.release_fd(), kReleasePageBytes, Access::kReadWrite, false).value()) {}
  const PublishPage& page() const { return *reinterpret_cast<const PublishPage*>(publish.data()); }
  ReleasePage& words() const { return *reinterpret_cast<ReleasePage*>(release.data()); }
  Mapping publish;
  Mapping release;
};

TEST(ControlPagesTest, PublishedDescriptorsArriveInOrder) {
  const auto pages = ControlPages::Create(3).value();
  const ClientView client(*pages);
  EXPECT_EQ(client.page().magic, kPublishPageMagic);
  EXPECT_EQ(client.page().version, kProtocolVersion);
  for (uint64_t i = 0; i < 3 * kMaxSlots; ++i) {
    BatchDescriptor descriptor{};
    descriptor.generation = i + 100;
    pages->Publish(descriptor);
    ASSERT_EQ(client.page().published.load(), i + 1);
    EXPECT_EQ(client.page().ring[i % kMaxSlots].sequence, i);
    EXPECT_EQ(client.page().ring[i % kMaxSlots].generation, i + 100);
  }
}

TEST(ControlPagesTest, ClientCannotWriteThePublishPage) {
  const auto pages = ControlPages::Create(3).value();
  EXPECT_FALSE(Mapping::Map(pages->publish_fd(), kPublishPageBytes, Access::kReadWrite, false).ok());
  const ClientView client(*pages);
  EXPECT_NE(::mprotect(client.publish.data(), kPublishPageBytes, PROT_READ | PROT_WRITE), 0);
}

TEST(ControlPagesTest, ReleasesAreSeenWhateverTheyAre) {
  const auto pages = ControlPages::Create(3).value();
  const ClientView client(*pages);
  EXPECT_EQ(pages->Released(2), 0U);
  client.words().slots[2].generation.store(UINT64_MAX);
  EXPECT_EQ(pages->Released(2), UINT64_MAX);
}

TEST(ControlPagesTest, FailureCarriesItsTextAndIsFinal) {
  const auto pages = ControlPages::Create(3).value();
  const ClientView client(*pages);
  pages->Fail(DataLoss(std::string(5000, 'x')));
  EXPECT_EQ(client.page().state.load(), static_cast<uint32_t>(FeedState::kFailed));
  EXPECT_EQ(client.page().error_code, static_cast<uint32_t>(Code::kDataLoss));
  EXPECT_EQ(client.page().error_bytes, kMaxErrorBytes);
  pages->SetState(FeedState::kRunning);
  pages->Publish(BatchDescriptor{});
  EXPECT_EQ(client.page().published.load(), 0U);
  EXPECT_EQ(client.page().state.load(), static_cast<uint32_t>(FeedState::kFailed));
}

// A descriptor that somebody kept holds no memory any more.
TEST(MemfdTest, DiscardGivesThePagesBack) {
  const auto fd = CreateMemfd("discarded", 1 << 20);
  ASSERT_TRUE(fd.ok());
  struct stat info {};
  ASSERT_EQ(::fstat(fd->get(), &info), 0);
  EXPECT_GT(info.st_blocks, 0);
  EXPECT_TRUE(DiscardMemfd(fd->get(), 1 << 20));
  ASSERT_EQ(::fstat(fd->get(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
  EXPECT_EQ(info.st_size, 1 << 20);
}

}  // namespace
}  // namespace pinfeed
