// SPDX-License-Identifier: Apache-2.0
// The client against a daemon that lies: in its offer, its descriptors, its pages. Each lie must become an
// error, never an access.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/client/served_feed.h"

namespace pinfeed {
namespace {

// An unsealed memfd; left open, as its number goes into the welcome.
int UnsealedMemfd(uint64_t bytes) {
  const int fd = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  PF_CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0, "make an unsealed memfd");
  return fd;
}

struct Lie {
  std::string name;
  FakeDaemon::Script script;
  pf_result code;
  std::string message;
};

void PrintTo(const Lie& lie, std::ostream* out) {
  *out << lie.name;
}

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    count += entry.exists() ? 1 : 0;
  return count;
}

class ClientHostileTest : public ::testing::TestWithParam<Lie> {};

TEST_P(ClientHostileTest, OpenRefuses) {
  const TempDir dir;
  FakeDaemon daemon(dir.path(), GetParam().script);
  const FeedOptions options{.address = daemon.address(), .open_timeout = std::chrono::milliseconds(30'000)};
  try {
    const Feed feed(kSpec, options);
    FAIL() << "the lie was believed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  }
  // Who was welcomed leaves with a farewell: the daemon has its memory back at once.
  if (GetParam().script.descriptors || GetParam().script.welcome) daemon.WaitForBye(0);
}

// It may be one that refuses this user as well as one at its end.
TEST(ClientOpenTest, DaemonThatEndsConnectionsIsTriedThreeTimes) {
  const TempDir dir;
  std::atomic<int> tries{0};
  const FakeDaemon daemon(dir.path(), {.refuse = [&](const v1::OpenFeedRequest&) {
                            return grpc::Status(grpc::UNAVAILABLE, "end " + std::to_string(++tries));
                          }});
  const FeedOptions options{.address = daemon.address(), .open_timeout = std::chrono::milliseconds(30'000)};
  EXPECT_THROW(Feed(kSpec, options), Error);
  EXPECT_THAT(pf_last_error(), HasSubstr("(end 3); it is stopping, refuses this user"));
}

// Another daemon took its place, or one of the two processes was stopped in between.
TEST(ClientOpenTest, AnOfferThatTheDaemonHasForgottenIsAskedForAgain) {
  for (const int times : {2, 1000}) {
    const TempDir dir;
    std::atomic<int> welcomes{0};
    FakeDaemon daemon(dir.path(), {.welcome = [&](LifelineFrame& frame) {
                        if (++welcomes <= times) frame.code = PF_UNAUTHENTICATED;
                      }});
    const FeedOptions options{.address = daemon.address(), .open_timeout = std::chrono::milliseconds(30'000)};
    if (times == 2) {
      EXPECT_NO_THROW(Feed(kSpec, options));
      EXPECT_EQ(welcomes, 3);
      continue;
    }
    try {
      const Feed feed(kSpec, options);
      FAIL() << "it was refused each time";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), PF_UNAVAILABLE) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("refused the lifeline"));
    }
  }
}

TEST(ClientOpenTest, DaemonThatWouldIgnoreAFieldOfTheSpecIsRefused) {
  constexpr char kLater[] = R"({"dataset": {"path": "/data"}, "batch_size": 4,
                                "transforms": [{"resize": {"size": [4, 4], "interpolation": ["bicubic"]}}]})";
  constexpr char kDecodes[] = R"({"dataset": {"path": "/data"}, "batch_size": 4, "decode": "DECODE_AUTO"})";
  const TempDir dir;
  for (const bool refuses : {false, true}) {
    FakeDaemon daemon(dir.path(), {.offer = [refuses](v1::OpenFeedResponse& offer) {
                        offer.set_refuses_unknown_fields(refuses);
                      }});
    const FeedOptions options{.address = daemon.address(), .open_timeout = std::chrono::milliseconds(30'000)};
    if (refuses) {
      EXPECT_NO_THROW(Feed(kLater, options));
      EXPECT_NO_THROW(Feed(kDecodes, options));
    } else {
      for (const char* const spec : {kLater, kDecodes}) {
        EXPECT_THROW(Feed(spec, options), Error);
        EXPECT_THAT(pf_last_error(), HasSubstr("is too old for decode, interpolation"));
      }
      EXPECT_NO_THROW(Feed(kSpec, options));
    }
  }
}

using Offer = v1::OpenFeedResponse;
using Fds = std::vector<int>;

Lie OfferLie(std::string name, std::function<void(Offer&)> edit, std::string message,
             pf_result code = PF_INTERNAL) {
  Lie lie{std::move(name), {}, code, std::move(message)};
  lie.script.offer = std::move(edit);
  return lie;
}
Lie FdLie(std::string name, std::function<void(FakeSession&, Fds&)> edit, std::string message) {
  Lie lie{std::move(name), {}, PF_INTERNAL, std::move(message)};
  lie.script.descriptors = std::move(edit);
  return lie;
}
Lie WelcomeLie(std::string name, std::function<void(LifelineFrame&)> edit, std::string message,
               pf_result code = PF_INTERNAL) {
  Lie lie{std::move(name), {}, code, std::move(message)};
  lie.script.welcome = std::move(edit);
  return lie;
}

INSTANTIATE_TEST_SUITE_P(
    Offer, ClientHostileTest,
    ::testing::Values(
        OfferLie(
            "ShortToken", [](Offer& o) { o.set_token("short"); }, "token has 5 bytes"),
        OfferLie(
            "NoBatchSize", [](Offer& o) { o.set_batch_size(0); }, "batch_size is 0"),
        OfferLie(
            "HugeBatch", [](Offer& o) { o.set_batch_size(0xffffffff); }, "ends after its slot"),
        OfferLie(
            "NoTensors", [](Offer& o) { o.clear_tensors(); }, "no tensors"),
        OfferLie(
            "SameNameTwice", [](Offer& o) { o.mutable_tensors(1)->set_name("image"); }, "two tensors"),
        OfferLie(
            "OffsetBehindTheSlot", [](Offer& o) { o.mutable_tensors(1)->set_offset(2 << 20); },
            "ends after its slot"),
        OfferLie(
            "OverflowingOffset", [](Offer& o) { o.mutable_tensors(1)->set_offset(~uint64_t{511}); },
            "ends after its slot"),
        OfferLie(
            "UnalignedOffset", [](Offer& o) { o.mutable_tensors(1)->set_offset(513); }, "unaligned"),
        OfferLie(
            "WrongSampleBytes", [](Offer& o) { o.mutable_tensors(0)->set_sample_bytes(5); },
            "offer is unusable"),
        OfferLie(
            "NegativeDimension", [](Offer& o) { o.mutable_tensors(0)->set_shape(0, -1); },
            "offer is unusable"),
        OfferLie(
            "UnknownDtype", [](Offer& o) { o.mutable_tensors(0)->set_dtype(static_cast<v1::DType>(99)); },
            "offer is unusable"),
        OfferLie(
            "TooManyDimensions",
            [](Offer& o) {
              for (int i = 0; i < 20; ++i) o.mutable_tensors(0)->add_shape(1);
            },
            "dimensions"),
        OfferLie(
            "NoSlots", [](Offer& o) { o.mutable_arena()->set_slot_count(0); }, "0 slots"),
        OfferLie(
            "TooManySlots", [](Offer& o) { o.mutable_arena()->set_slot_count(65); }, "65 slots"),
        OfferLie(
            "StrideBehindTheArena", [](Offer& o) { o.mutable_arena()->set_slot_stride(4 << 20); },
            "in an arena of"),
        OfferLie(
            "OverflowingStride", [](Offer& o) { o.mutable_arena()->set_slot_stride(~uint64_t{511}); },
            "in an arena of"),
        OfferLie(
            "LargerArenaThanSent", [](Offer& o) { o.mutable_arena()->set_bytes(100 << 20); },
            "arena: shared memory has"),
        OfferLie(
            "OtherSlotCountThanThePage", [](Offer& o) { o.mutable_arena()->set_slot_count(2); },
            "publish page is for 3 slots"),
        OfferLie(
            "RelativeLifeline", [](Offer& o) { o.set_lifeline_path("lifeline.sock"); }, "not absolute"),
        OfferLie(
            "LongLifeline", [](Offer& o) { o.set_lifeline_path("/" + std::string(200, 'x')); },
            "not a valid path of a Unix socket", PF_INVALID_ARGUMENT),
        OfferLie(
            "MissingLifeline", [](Offer& o) { o.set_lifeline_path("/nonexistent/socket"); }, "No such file",
            PF_UNAVAILABLE),
        OfferLie(
            "TruncatedHandle", [](Offer& o) { OfferHandle(o, 63); }, "handle has 63 bytes, expected 64"),
        OfferLie(
            "NoHandle", [](Offer& o) { OfferHandle(o, 0); }, "handle has 0 bytes, expected 64"),
        OfferLie(
            "HandleForReadingOnly",
            [](Offer& o) {
              OfferHandle(o, 64);
              o.mutable_arena()->set_read_only(true);
            },
            "cannot be mapped read-only"),
        OfferLie(
            "NoBackend", [](Offer& o) { o.mutable_arena()->clear_backend(); }, "unknown to this library")),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Lifeline, ClientHostileTest,
    ::testing::Values(
        FdLie(
            "TooFewDescriptors", [](FakeSession&, Fds& fds) { fds.pop_back(); },
            "3 descriptors were received, expected 4"),
        FdLie(
            "NoDescriptors", [](FakeSession&, Fds& fds) { fds.clear(); }, "0 descriptors were received"),
        FdLie(
            "TooManyDescriptors", [](FakeSession&, Fds& fds) { fds.push_back(fds[0]); },
            "5 descriptors were received"),
        FdLie(
            "UnsealedPublishPage", [](FakeSession&, Fds& fds) { fds[0] = UnsealedMemfd(kPublishPageBytes); },
            "publish page: shared memory is not sealed"),
        FdLie(
            "UnsealedReleasePage", [](FakeSession&, Fds& fds) { fds[1] = UnsealedMemfd(kReleasePageBytes); },
            "release page: shared memory is not sealed"),
        FdLie(
            "UnsealedArena", [](FakeSession&, Fds& fds) { fds[3] = UnsealedMemfd(6 << 20); },
            "arena: shared memory is not sealed"),
        FdLie(
            "SwappedDescriptors", [](FakeSession&, Fds& fds) { std::swap(fds[0], fds[2]); }, "unusable"),
        FdLie(
            "PipeAsArena", [](FakeSession&, Fds& fds) { fds[3] = ::open("/dev/null", O_RDONLY | O_CLOEXEC); },
            "arena"),
        FdLie(
            "BlockingDoorbell", [](FakeSession&, Fds& fds) { fds[2] = ::eventfd(0, EFD_CLOEXEC); },
            "doorbell is a blocking"),
        FdLie(
            "WrongMagic", [](FakeSession& s, Fds&) { s.page().magic = 1; }, "magic number"),
        FdLie(
            "WrongVersion", [](FakeSession& s, Fds&) { s.page().version = 2; }, "has version 2"),
        WelcomeLie(
            "WrongFrameMagic", [](LifelineFrame& f) { f.magic = 0; }, "not a welcome"),
        WelcomeLie(
            "WrongKind", [](LifelineFrame& f) { f.kind = 3; }, "not a welcome"),
        WelcomeLie(
            "UnknownCode", [](LifelineFrame& f) { f.code = 99; }, "refused", PF_UNKNOWN),
        WelcomeLie(
            "UnterminatedText",
            [](LifelineFrame& f) {
              f.code = PF_PERMISSION_DENIED;
              std::memset(f.text, 'x', sizeof(f.text));
            },
            "refused the lifeline: " + std::string(208, 'x'), PF_PERMISSION_DENIED)),
    [](const auto& test) { return test.param.name; });

TEST(ClientHostileDescriptorsTest, NoneLeaksFromARefusedWelcome) {
  const TempDir dir;
  FakeDaemon::Script script;
  script.descriptors = [](FakeSession&, Fds& fds) { fds.insert(fds.end(), 8, fds[0]); };
  const auto count_after = [&] {
    const FakeDaemon daemon(dir.path(), script);
    EXPECT_THROW(Feed(kSpec, {.address = daemon.address()}), Error);
    return 0;
  };
  count_after();  // gRPC's own descriptors of a first use
  const size_t before = OpenDescriptors();
  constexpr size_t kRounds = 8;
  for (size_t i = 0; i < kRounds; ++i) count_after();
  // gRPC keeps some to use again, and closes others when its threads come to it; a leak is one a round.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (OpenDescriptors() >= before + kRounds && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_LT(OpenDescriptors(), before + kRounds);
}

// Lies about batches come when the feed is open.
class ClientHostileBatchTest : public ServedFeedTest {
 protected:
  void ExpectBroken(const std::string& message) {
    pf_batch* batch = nullptr;
    EXPECT_EQ(pf_next(feed_.get(), 0, &batch), PF_INTERNAL);
    EXPECT_EQ(batch, nullptr);
    EXPECT_THAT(pf_last_error(), HasSubstr(message));
  }
};

TEST_F(ClientHostileBatchTest, SlotOutsideTheArena) {
  session_.Publish([](BatchDescriptor& batch) { batch.slot = 3; });
  ExpectBroken("lies in slot 3 of 3");
  ExpectBroken("lies in slot 3 of 3");
}

TEST_F(ClientHostileBatchTest, MoreSamplesThanASlotHolds) {
  session_.Publish([](BatchDescriptor& batch) { batch.samples = 5; });
  ExpectBroken("has 5 samples");
}

TEST_F(ClientHostileBatchTest, WrongSequence) {
  session_.Publish([](BatchDescriptor& batch) { batch.sequence = 64; });
  ExpectBroken("described as number 64");
}

TEST_F(ClientHostileBatchTest, SlotThatIsStillHeld) {
  session_.Publish();
  const Batch held = *feed_.Next();
  session_.Publish([](BatchDescriptor& batch) { batch.slot = 0; });
  ExpectBroken("still holds");
}

TEST_F(ClientHostileBatchTest, CountBeyondTheRing) {
  session_.page().published.store(65);
  ExpectBroken("count of batches is 65");
}

TEST_F(ClientHostileBatchTest, CountThatGoesBack) {
  session_.Publish();
  session_.Publish();
  EXPECT_EQ(feed_.Next()->index(), 0U);
  session_.page().published.store(0);
  ExpectBroken("count of batches is 0");
}

TEST_F(ClientHostileBatchTest, ErrorTextLongerThanItsPlace) {
  session_.Fail(99, "oops", 0xffffffff);
  ExpectBroken("oops");
}

TEST_F(ClientHostileBatchTest, UnknownState) {
  session_.SetState(static_cast<FeedState>(17));
  ExpectBroken("unknown state 17");
}

}  // namespace
}  // namespace pinfeed
