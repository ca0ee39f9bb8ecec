// SPDX-License-Identifier: Apache-2.0
#include "server/session/open_feed.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/unit/session/opener_fixture.h"

namespace pinfeed {
namespace {

constexpr uint32_t kSessionsOfAUser = 2;

// What the daemon says to a session that is to take another one's place.
class OpenFeedTest : public OpenerTest {
 protected:
  OpenFeedTest() : OpenerTest(kSessionsOfAUser) { table_.Start(); }
  ~OpenFeedTest() override {
    for (const auto& session : sessions_.All()) sessions_.Depart(session, {DepartureReason::kDaemonStops});
    table_.Stop();
  }

  static OpenFeedArguments Arguments(Sharing sharing = Sharing::kBroadcast, uint32_t group_size = 1) {
    OpenFeedArguments arguments;
    arguments.spec = Spec(8);
    arguments.spec.slots = 4;
    arguments.spec.backend = Backend::kHost;
    arguments.spec.sharing = sharing;
    arguments.spec.group_size = group_size;
    if (sharing != Sharing::kExclusive) arguments.spec.group = "g";
    return arguments;
  }
  static OpenFeedArguments At(uint64_t position, uint64_t replaces, OpenFeedArguments arguments) {
    arguments.cursor = Cursor{
        .fingerprint = "", .seed = arguments.spec.seed, .position = position, .order = Order::kShuffle};
    arguments.replaces_session = replaces;
    return arguments;
  }
  Result<OpenFeedOutcome> Ask(const OpenFeedArguments& arguments, const Peer& peer = kPeer) {
    return opener_.Open(peer, arguments, std::make_shared<NumberDataset>(80));
  }
  Result<std::shared_ptr<Session>> Open(const OpenFeedArguments& arguments, const Peer& peer = kPeer) {
    ASSIGN_OR_RETURN(const OpenFeedOutcome outcome, Ask(arguments, peer));
    if (const auto* session = std::get_if<std::shared_ptr<Session>>(&outcome)) return *session;
    return Internal("the outcome is no session");
  }
  uint64_t MustServe(const OpenFeedArguments& arguments, const Peer& peer = kPeer) {
    const std::shared_ptr<Session> session = Open(arguments, peer).value();
    EXPECT_OK(SessionTable::Attach(*session));
    return session->id;
  }
  void End(uint64_t id) { sessions_.Depart(sessions_.Find(id), {DepartureReason::kBye}); }
  void Leave(uint64_t id) { sessions_.Depart(sessions_.Find(id), {DepartureReason::kLeft}); }
  bool MustEndFirst(const OpenFeedArguments& arguments, const Peer& peer = kPeer) {
    const Result<OpenFeedOutcome> outcome = Ask(arguments, peer);
    if (!outcome.ok()) return false;
    // A session that comes of asking ends at once.
    if (const auto* session = std::get_if<std::shared_ptr<Session>>(&*outcome))
      sessions_.Depart(*session, {DepartureReason::kCancelled});
    return std::holds_alternative<ReplacedEndsFirst>(*outcome);
  }

  static constexpr Peer kPeer{.pid = 77, .uid = kOwner, .gid = 1};
};

// Threads of this process that are named "reader" and a number.
size_t CountReaders() {
  size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    count += name.starts_with("reader") ? 1 : 0;
  }
  return count;
}

TEST_F(OpenFeedTest, TheFirstRemoteDatasetStartsTheReaders) {
  EXPECT_EQ(CountReaders(), 0U);
  for (int i = 0; i < 2; ++i) {
    const auto remote = std::make_shared<RemoteDataset>(std::make_shared<NumberDataset>(80));
    ASSERT_OK_AND_ASSIGN(const OpenFeedOutcome outcome, opener_.Open(kPeer, Arguments(), remote));
    const auto session = std::get<std::shared_ptr<Session>>(outcome);
    ASSERT_OK(SessionTable::Attach(*session));
    WaitFor([&] { return session->feed->Snapshot().batches == 4; });
    WaitFor([&] { return CountReaders() == readers_.threads(); });  // a new thread names itself
    End(session->id);
  }
}

// Its texts are short, though one may have a megabyte.
class TextDataset final : public Dataset {
 public:
  TextDataset() {
    info_.path = "/texts";
    info_.samples = 80;
    info_.fields = {{{"text", DType::kUint8, {int64_t{1} << 20}}, FieldKind::kRagged}};
  }
  const DatasetInfo& info() const override { return info_; }
  Status ReadBytes(uint64_t, size_t, std::vector<std::byte>& out) const override {
    out.assign(3, std::byte{'a'});
    return OkStatus();
  }
  std::string Describe(uint64_t id) const override { return "text " + std::to_string(id); }

 private:
  DatasetInfo info_;
};

TEST_F(OpenFeedTest, ShortTextsGetManySlotsThoughOneMayBeLongWhileThereIsMemory) {
  const auto open = [&](uint32_t slots, uid_t uid) -> Result<uint32_t> {
    OpenFeedArguments arguments = Arguments(Sharing::kExclusive);
    arguments.spec.batch_size = 24;
    arguments.spec.slots = slots;
    ASSIGN_OR_RETURN(const OpenFeedOutcome outcome, opener_.Open({.pid = 77, .uid = uid, .gid = 1}, arguments,
                                                                 std::make_shared<TextDataset>()));
    return std::get<std::shared_ptr<Session>>(outcome)->feed->arena().slot_count();
  };
  EXPECT_EQ(open(0, 1).value(), 10U);
  EXPECT_EQ(open(26, 2).value(), 26U);
  EXPECT_EQ(open(0, 3).value(), 4U);  // the least, of some 24 MiB each
  EXPECT_EQ(open(0, 4).status().code(), Code::kResourceExhausted);
}

// Batches of 24 MiB.
TEST_F(OpenFeedTest, LargeBatchesGetTwiceTheSlotsWhereThatIsLittleOfWhatTheUserMayHave) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  MemoryBudget small{4 * kGiB};
  MemoryBudget large{8 * kGiB};
  MemoryBudget shared{8 * kGiB, 4 * kGiB, {}};
  MemoryBudget nearly_full{8 * kGiB};
  const BudgetLease taken = nearly_full.Reserve(8 * kGiB - 5 * (uint64_t{24} << 20)).value();
  const std::vector<std::pair<MemoryBudget*, uint32_t>> expected = {
      {&small, 4}, {&large, 8}, {&shared, 4}, {&nearly_full, 4}};
  for (const auto& [pool, slots] : expected) {
    const FeedOpener opener(PartsWith(nullptr, nullptr, pool));
    OpenFeedArguments arguments = Arguments(Sharing::kExclusive);
    arguments.spec.batch_size = 49'152;
    arguments.spec.slots = 0;
    ASSERT_OK_AND_ASSIGN(const OpenFeedOutcome outcome,
                         opener.Open(kPeer, arguments, std::make_shared<NumberDataset>(80)));
    const auto& session = std::get<std::shared_ptr<Session>>(outcome);
    EXPECT_EQ(session->feed->arena().slot_count(), slots);
    End(session->id);
  }
  WaitFor([&] { return large.used_bytes() == 0 && small.used_bytes() == 0 && shared.used_bytes() == 0; });
  WaitFor([&] { return nearly_full.used_bytes() == taken.bytes(); });
}

// Batches of 768 KiB, of which 16 are usual.
TEST_F(OpenFeedTest, SmallBatchesGetFewerSlotsWhereMemoryIsShort) {
  MemoryBudget pool{uint64_t{4} << 20};
  const FeedOpener opener(PartsWith(nullptr, nullptr, &pool));
  OpenFeedArguments arguments = Arguments(Sharing::kExclusive);
  arguments.spec.batch_size = 1536;
  arguments.spec.slots = 0;
  {
    ASSERT_OK_AND_ASSIGN(const OpenFeedOutcome outcome,
                         opener.Open(kPeer, arguments, std::make_shared<NumberDataset>(80)));
    const auto& session = std::get<std::shared_ptr<Session>>(outcome);
    EXPECT_EQ(session->feed->arena().slot_count(), 4U);
    End(session->id);
  }
  WaitFor([&] { return pool.used_bytes() == 0; });
}

// Where a feed that the daemon reads gets 8 slots (above) or packed rows get more.
TEST_F(OpenFeedTest, ASharedProducedFeedHasAsManySlotsAsItsStagingMemory) {
  MemoryBudget pool{uint64_t{8} << 30};
  const FeedOpener opener(PartsWith(nullptr, nullptr, &pool));
  for (const uint32_t batch_size : {16U, 6144U}) {
    OpenFeedArguments arguments = Arguments(Sharing::kBroadcast);
    arguments.spec.dataset = {};
    arguments.spec.dataset.produced =
        ProducedDataset{"x", 10'000, {{"batch", DType::kUint8, {4096}}}, "", 0, 0};
    arguments.spec.batch_size = batch_size;
    arguments.spec.slots = 0;
    ASSERT_OK_AND_ASSIGN(const OpenFeedOutcome outcome, opener.Open(kPeer, arguments, nullptr));
    const auto& session = std::get<std::shared_ptr<Session>>(outcome);
    const Feed& feed = *session->feed;
    ASSERT_NE(feed.producer().staging(), nullptr);
    EXPECT_EQ(feed.arena().slot_count(), feed.producer().staging()->slot_count());
    End(session->id);
  }
  WaitFor([&] { return pool.used_bytes() == 0; });
}

TEST_F(OpenFeedTest, OnlyMemberHasToEndFirst) {
  for (const Sharing sharing : {Sharing::kBroadcast, Sharing::kQueue}) {
    const OpenFeedArguments arguments = Arguments(sharing);
    const uint64_t only = MustServe(arguments);
    EXPECT_TRUE(MustEndFirst(At(0, only, arguments)));
    const uint64_t other = MustServe(arguments);
    EXPECT_FALSE(MustEndFirst(At(0, only, arguments)));
    End(other);
    EXPECT_TRUE(MustEndFirst(At(0, only, arguments)));
    End(only);
  }
}

TEST_F(OpenFeedTest, MemberThatIsStillToComeIsAnotherOne) {
  const uint64_t first = MustServe(Arguments());
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> pending, Open(Arguments()));
  EXPECT_FALSE(MustEndFirst(At(0, first, Arguments())));
}

TEST_F(OpenFeedTest, GroupThatIsNotCompleteDoesNotCountAMemberTwice) {
  const OpenFeedArguments arguments = Arguments(Sharing::kBroadcast, 2);
  const uint64_t first = MustServe(arguments);
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> second, Open(arguments));
  EXPECT_TRUE(MustEndFirst(At(0, first, arguments)));
  ASSERT_OK(SessionTable::Attach(*second));
  EXPECT_FALSE(MustEndFirst(At(0, first, arguments)));
}

TEST_F(OpenFeedTest, PositionThatIsNoneEndsNothing) {
  const uint64_t only = MustServe(Arguments());
  EXPECT_THAT(Ask(At(3, only, Arguments())), StatusIs(Code::kInvalidArgument, HasSubstr("boundary")));
  OpenFeedArguments changed = At(0, only, Arguments());
  changed.cursor->fingerprint = "fedcba9876543210";
  EXPECT_THAT(Ask(changed), StatusIs(Code::kFailedPrecondition, HasSubstr("cursor.fingerprint")));
  EXPECT_EQ(sessions_.Find(only)->state, SessionState::kAttached);
}

TEST_F(OpenFeedTest, RefusedSessionLeavesTheOneThatItWasToReplace) {
  const uint64_t mine = MustServe(Arguments());
  const uint64_t other = MustServe(Arguments());
  Feed& feed = *sessions_.Find(mine)->feed;
  WaitFor([&] { return feed.Snapshot().batches == 4; });  // all slots are lent: it stays there
  {
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> late, Open(At(0, mine, Arguments())));
    EXPECT_THAT(SessionTable::Attach(*late), StatusIs(Code::kFailedPrecondition, HasSubstr("already at")));
    sessions_.Depart(late, {DepartureReason::kNotServed});
  }
  EXPECT_EQ(sessions_.Find(mine)->state, SessionState::kAttached);
  EXPECT_EQ(sessions_.Find(other)->state, SessionState::kAttached);
  EXPECT_EQ(sessions_.by_user().at(kOwner), 2U);
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> ahead, Open(At(48, mine, Arguments())));
  EXPECT_OK(SessionTable::Attach(*ahead));
}

TEST_F(OpenFeedTest, ReplacedSessionDoesNotCountAgainstTheLimits) {
  const uint64_t mine = MustServe(Arguments());
  MustServe(Arguments());
  EXPECT_THAT(Open(Arguments()), StatusIs(Code::kResourceExhausted, HasSubstr("user_sessions")));
  MustServe(At(48, mine, Arguments()));
  EXPECT_THAT(Open(At(48, mine, Arguments())), StatusIs(Code::kResourceExhausted, HasSubstr("user_sessions")))
      << "one replaces one";
}

TEST_F(OpenFeedTest, SessionsThatWereLeftDoNotCountUpToAsManyAgain) {
  const uint64_t first = MustServe(Arguments());
  const uint64_t second = MustServe(Arguments());
  Leave(first);
  const uint64_t third = MustServe(Arguments());
  EXPECT_THAT(Open(Arguments()), StatusIs(Code::kResourceExhausted, HasSubstr("user_sessions")));
  Leave(second);
  const uint64_t fourth = MustServe(Arguments());
  Leave(third);
  EXPECT_THAT(Open(Arguments()), StatusIs(Code::kResourceExhausted, HasSubstr("user_sessions")))
      << "three that were left and one that is served";
  End(first);
  EXPECT_OK(Open(Arguments()));
  EXPECT_EQ(sessions_.Find(fourth)->state, SessionState::kAttached);
}

TEST_F(OpenFeedTest, FeedsOfTheirOwnThatWereLeftCountAgainstTheLimits) {
  const OpenFeedArguments own = Arguments(Sharing::kExclusive);
  const uint64_t first = MustServe(own);
  MustServe(own);
  Leave(first);
  EXPECT_THAT(Open(own), StatusIs(Code::kResourceExhausted, HasSubstr("user_sessions")));
  End(first);
  EXPECT_OK(Open(own));
}

TEST_F(OpenFeedTest, SessionThatIsNotTheCallersOnThatFeedIsNoneToReplace) {
  const uint64_t mine = MustServe(Arguments());
  const auto ignored = [&](const OpenFeedArguments& arguments, const Peer& peer = kPeer) {
    EXPECT_FALSE(MustEndFirst(At(0, mine, arguments), peer));
    return !MustEndFirst(At(3, mine, arguments), peer);  // nor is its feed asked about the position
  };
  EXPECT_TRUE(ignored(Arguments(), {.pid = 77, .uid = kOwner + 1, .gid = 1})) << "another user's";
  EXPECT_TRUE(ignored(Arguments(), {.pid = 78, .uid = kOwner, .gid = 1})) << "another process's";
  EXPECT_TRUE(ignored(Arguments(Sharing::kExclusive))) << "of another feed";
  OpenFeedArguments other_group = Arguments();
  other_group.spec.group = "h";
  EXPECT_TRUE(ignored(other_group)) << "of another group";
  OpenFeedArguments other_spec = Arguments();
  other_spec.spec.seed = 6;
  EXPECT_TRUE(ignored(other_spec)) << "of a group with another spec";
  EXPECT_FALSE(MustEndFirst(At(3, mine + 1, Arguments()))) << "none";
  EXPECT_FALSE(MustEndFirst(At(3, UINT64_MAX, Arguments()))) << "none";
  EXPECT_FALSE(MustEndFirst(At(3, 0, Arguments()))) << "none";
  // Nor is there room for one more by naming it.
  MustServe(other_group);
  EXPECT_THAT(Open(At(0, mine, other_group)), StatusIs(Code::kResourceExhausted, HasSubstr("user_sessions")));
}

TEST_F(OpenFeedTest, SessionThatIsNotServedIsNoneToReplace) {
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> pending, Open(Arguments()));
  EXPECT_FALSE(MustEndFirst(At(0, pending->id, Arguments())));
  ASSERT_OK(SessionTable::Attach(*pending));
  EXPECT_TRUE(MustEndFirst(At(0, pending->id, Arguments())));
  sessions_.Depart(pending, {DepartureReason::kHungUp});
  EXPECT_FALSE(MustEndFirst(At(0, pending->id, Arguments())));
}

}  // namespace
}  // namespace pinfeed
