// SPDX-License-Identifier: Apache-2.0
// What a trainer gets of feeds whose images its client decodes.
#include <cstring>
#include <set>

#include "server/image/decode.h"
#include "tests/integration/client_decode_fixture.h"

namespace pinfeed {
namespace {

using ::testing::MatchesRegex;

constexpr char kAll[] =
    R"(, "sample_ids": true, "valid": true, "sample_path": true, "on_bad_sample": "ZERO")";

TEST_F(ClientDecodeTest, BatchesAreThoseOfTheWorkers) {
  const size_t threads = CountThreads();
  const auto engine = std::make_shared<CpuDecodeEngine>();
  for (const std::string layout : {"CHW", "HWC"}) {
    const std::string more = std::string(kAll) + R"(, "image_layout": ")" + layout + "\"";
    const auto gpu = Open(more + kGpu, engine);
    const auto cpu = Open(more);
    EXPECT_EQ(gpu->constants().decode, "gpu");
    EXPECT_EQ(gpu->constants().decoder, "the test's CPU");
    EXPECT_EQ(cpu->constants().decode, "cpu");
    EXPECT_EQ(cpu->constants().decoder, "");
    ASSERT_EQ(gpu->offer().outputs.size(), cpu->offer().outputs.size());
    ExpectSame(*gpu, *cpu, 20);  // two and a half epochs
  }
  EXPECT_GT(engine->decoded(), 200U);
  EXPECT_EQ(engine->alive(), 0U) << "decoders or memory of closed feeds";
  EXPECT_EQ(CountThreads(), threads);
}

TEST_F(ClientDecodeTest, AutoIsDecidedOnceAndKept) {
  const auto engine = std::make_shared<CpuDecodeEngine>();
  const auto feed = Open(R"(, "slots": 3, "decode": "DECODE_AUTO")", engine);
  const auto cpu = Open();
  EXPECT_EQ(feed->constants().decode, "auto:1000");  // two workers are slower than that
  ExpectSame(*feed, *cpu, 3);
  // A daemon that would decide otherwise, and the same for who asks for it now.
  daemon_->Kill();
  Serve("64");
  ExpectSame(*feed, *cpu, 8);
  EXPECT_EQ(feed->reconnects(), 1U);
  EXPECT_EQ(feed->constants().decode, "auto:1000");
  const auto other = Open(R"(, "decode": "DECODE_AUTO")", engine);
  EXPECT_THAT(other->constants().decode, MatchesRegex("auto:[456]..")) << "by the processors that there are";
  const auto given = Open(R"(, "decode": "DECODE_AUTO", "gpu_share": 7)", engine);
  EXPECT_EQ(given->constants().decode, "auto:7");
}

TEST_F(ClientDecodeTest, AutoWithoutAGpuIsTheCpuAndSaysSo) {
  const auto feed = Open(R"(, "decode": "DECODE_AUTO")");
  EXPECT_EQ(feed->constants().decode, "cpu");
  EXPECT_THAT(Log(), AllOf(HasSubstr("decoded by the CPU, not by the GPU: the client names no GPU"),
                           HasSubstr("give decode \"cpu\" or \"gpu\" with a device (device=)")));
  EXPECT_OK(Next(*feed));
  EXPECT_THAT(Feed::Open(Options(kGpu, nullptr)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("the client names no GPU")));
  FeedOptions without = Options(kGpu, std::make_shared<CpuDecodeEngine>());
  without.session.open_decoder = [] {
    return Result<std::shared_ptr<DecodeEngine>>(Unavailable("it has no engines"));
  };
  EXPECT_THAT(Feed::Open(without), StatusIs(Code::kFailedPrecondition, HasSubstr("it has no engines")));
}

TEST_F(ClientDecodeTest, AutoWithTooLittleMemoryIsTheCpuAndSaysSoOnce) {
  const auto engine = std::make_shared<CpuDecodeEngine>();
  engine->RunOutOfMemory();
  const auto feed = Open(R"(, "decode": "DECODE_AUTO")", engine);
  const auto cpu = Open();
  EXPECT_EQ(feed->constants().decode, "cpu");
  EXPECT_EQ(feed->constants().decoder, "");
  EXPECT_EQ(engine->alive(), 0U);
  ExpectSame(*feed, *cpu, 3);
  daemon_->Kill();
  Serve();
  ExpectSame(*feed, *cpu, 3);
  EXPECT_EQ(feed->constants().decode, "cpu");
  const size_t warning = Log().find("decoded by the CPU, not by the GPU: allocate ");
  ASSERT_NE(warning, std::string::npos) << Log();
  EXPECT_EQ(Log().find("decoded by the CPU", warning + 1), std::string::npos) << Log();
}

TEST_F(ClientDecodeTest, GpuWithTooLittleMemoryIsAnError) {
  const auto engine = std::make_shared<CpuDecodeEngine>();
  engine->RunOutOfMemory();
  EXPECT_THAT(Feed::Open(Options(kGpu, engine)),
              StatusIs(Code::kResourceExhausted, HasSubstr("smaller batches need less")));
  EXPECT_THAT(Feed::Open(Options(R"(, "decode": "DECODE_AUTO", "gpu_share": 500)", engine)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("smaller batches need less")));
  EXPECT_EQ(engine->alive(), 0U);
  EXPECT_EQ(Log(), "");
}

TEST_F(ClientDecodeTest, SeeksAndResumesInTheMiddle) {
  const auto engine = std::make_shared<CpuDecodeEngine>();
  const auto gpu = Open(kGpu, engine);
  const auto cpu = Open();
  ExpectSame(*gpu, *cpu, 3);
  const Cursor cursor = gpu->cursor();
  ExpectSame(*gpu, *cpu, 3);
  ASSERT_OK(gpu->Seek(cursor));
  ASSERT_OK(cpu->Seek(cursor));
  ExpectSame(*gpu, *cpu, 3);
  FeedOptions resumed = Options(kGpu, engine);
  resumed.session.request.cursor = cursor;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Feed> other, Feed::Open(resumed));
  ASSERT_OK(cpu->Seek(cursor));
  ExpectSame(*other, *cpu, 5);
  ASSERT_OK(gpu->SeekEpoch(4));
  ASSERT_OK(cpu->SeekEpoch(4));
  ExpectSame(*gpu, *cpu, 3);
}

TEST_F(ClientDecodeTest, EpochsEnd) {
  const auto feed = Open(std::string(kGpu) + R"(, "epochs": 2)", std::make_shared<CpuDecodeEngine>());
  for (int i = 0; i < 16; ++i) ASSERT_OK(Next(*feed));
  EXPECT_THAT(Next(*feed), StatusIs(Code::kOutOfRange, HasSubstr("last epoch")));
}

TEST_F(ClientDecodeTest, MembersOfAGroupShareBatchesAndTheDecision) {
  const std::string group = R"(, "sharing": "BROADCAST", "group": "g", "group_size": 2)";
  const auto engine = std::make_shared<CpuDecodeEngine>();
  const auto first = Open(group + R"(, "decode": "DECODE_AUTO")", engine);
  const auto second = Open(group + R"(, "decode": "DECODE_AUTO", "gpu_share": 1000)", engine);
  const auto cpu = Open();
  EXPECT_EQ(first->constants().decode, second->constants().decode);
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK_AND_ASSIGN(const Tensors expected, Next(*cpu));
    ASSERT_OK_AND_ASSIGN(const Tensors a, Next(*first));
    ASSERT_OK_AND_ASSIGN(const Tensors b, Next(*second));
    ASSERT_EQ(a, expected) << i;
    ASSERT_EQ(b, expected) << i;
  }
  EXPECT_THAT(Feed::Open(Options(group + R"(, "decode": "DECODE_AUTO", "gpu_share": 5)", engine)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("gpu_share")));
  EXPECT_THAT(Feed::Open(Options(group + R"(, "decode": "DECODE_AUTO")", nullptr)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("the client names no GPU")));
}

// Refuses the images of some widths, as a GPU that finds damage in their data.
std::shared_ptr<CpuDecodeEngine> PickyEngine(std::set<int> widths) {
  return std::make_shared<CpuDecodeEngine>([widths = std::move(widths)](std::span<const std::byte> file) {
    ImageDecoder decoder;
    const Result<ImageSize> size = decoder.Open(file);
    return size.ok() && widths.contains(size->width) ? DataLoss("bad codes") : OkStatus();
  });
}

TEST_F(ClientDecodeTest, ImageThatFailsIsAnErrorBehindTheBatchesBefore) {
  const std::string more = std::string(kGpu) + R"(, "order": "SEQUENTIAL", "sample_ids": true)";
  // Samples 0 to 29 are of class 0: images 0, 2, 4, ...
  const auto feed = Open(more, PickyEngine({60 + 2 * 13, 60 + 2 * 12}));
  ASSERT_OK(Next(*feed));
  const Cursor before = feed->cursor();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Next(*feed),
                StatusIs(Code::kDataLoss, HasSubstr("image 4 of batch 1 of epoch 0 cannot be decoded by the "
                                                    "GPU: sample 12: bad codes")));
  }
  EXPECT_EQ(feed->cursor(), before);
  Cursor behind = before;
  behind.position = 16;
  ASSERT_OK(feed->Seek(behind));
  EXPECT_OK(Next(*feed));
}

TEST_F(ClientDecodeTest, ImageThatFailsIsZeroedAndMarked) {
  const std::string more = std::string(kAll) + R"(, "order": "SEQUENTIAL")";
  const auto feed = Open(more + kGpu, PickyEngine({60 + 2 * 13}));
  const auto cpu = Open(more);
  ExpectSame(*feed, *cpu, 1);
  ASSERT_OK_AND_ASSIGN(Tensors made, Next(*feed));
  ASSERT_OK_AND_ASSIGN(Tensors expected, Next(*cpu));
  const std::vector<OfferedOutput>& outputs = feed->offer().outputs;
  for (size_t t = 0; t < outputs.size(); ++t) {
    const std::string& name = outputs[t].spec.name;
    const size_t bytes = *outputs[t].spec.SampleBytes();
    if (outputs[t].spec.extents) {  // a path has no rows
      EXPECT_LT(made[t].size(), expected[t].size());
      continue;
    }
    if (outputs[t].is_extents) {
      RowExtent extent;
      std::memcpy(&extent, made[t].data() + 5 * sizeof extent, sizeof extent);
      EXPECT_EQ(extent.count, 0);
      continue;
    }
    if (name != "sample_id") std::memset(expected[t].data() + 5 * bytes, 0, bytes);  // sample 13
    EXPECT_EQ(made[t], expected[t]) << name;
  }
  ExpectSame(*feed, *cpu, 4);
  EXPECT_THAT(Log(), HasSubstr("image 5 of batch 1 of epoch 0 cannot be decoded by the GPU: sample 13: bad "
                               "codes; such samples are zeros (1 so far)"));
}

TEST_F(ClientDecodeTest, BrokenGpuFailsTheFeed) {
  const auto engine = std::make_shared<CpuDecodeEngine>();
  const auto feed = Open(kGpu, engine);
  ASSERT_OK(Next(*feed));
  engine->Break(Internal("the GPU fell off the bus"));
  Status status;
  for (int i = 0; i < 10 && status.ok(); ++i) status = Next(*feed).status();
  EXPECT_THAT(status, StatusIs(Code::kInternal, HasSubstr("fell off the bus")));
}

TEST_F(ClientDecodeTest, RingIsNotOverwrittenBeforeTheGpuHasReadIt) {
  const auto engine = std::make_shared<CpuDecodeEngine>();
  const auto feed = Open(std::string(kGpu) + R"(, "slots": 8)", engine);
  engine->HoldWrites(true);
  for (uint32_t i = 0; i < DecodedBatches::kRing; ++i) ASSERT_OK(Next(*feed));
  const size_t decoded = engine->decoded();
  EXPECT_THAT(feed->Next(std::chrono::milliseconds(100)),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("the GPU decodes its images")));
  EXPECT_EQ(engine->decoded(), decoded);
  engine->HoldWrites(false);
  EXPECT_OK(Next(*feed));
}

TEST_F(ClientDecodeTest, BatchesMayBeReleasedWithoutBeingWritten) {
  const auto gpu = Open(kGpu, std::make_shared<CpuDecodeEngine>());
  const auto cpu = Open();
  for (int i = 0; i < 20; ++i) {
    for (Feed* const feed : {gpu.get(), cpu.get()}) {
      ASSERT_OK_AND_ASSIGN(Batch* const batch, feed->Next(std::chrono::seconds(30)));
      batch->Release();
    }
    if (i % 3 == 0) ExpectSame(*gpu, *cpu, 1);
  }
}

TEST_F(ClientDecodeTest, TimeoutCoversDecodingAndLosesNothing) {
  const auto engine = std::make_shared<CpuDecodeEngine>();
  engine->HoldDecoders(true);
  const auto gpu = Open(kGpu, engine);
  const auto cpu = Open();
  EXPECT_TRUE(engine->AwaitHeld());
  EXPECT_THAT(gpu->Next(std::chrono::milliseconds(20)), StatusIs(Code::kDeadlineExceeded, HasSubstr("GPU")));
  EXPECT_THAT(gpu->Next(std::chrono::seconds(0)), StatusIs(Code::kDeadlineExceeded, HasSubstr("GPU")));
  engine->HoldDecoders(false);
  ExpectSame(*gpu, *cpu, 3);
}

TEST_F(ClientDecodeTest, DaemonThatIsKilledWhileBatchesAreDecoded) {
  const auto engine = std::make_shared<CpuDecodeEngine>();
  const auto gpu = Open(std::string(kGpu) + R"(, "slots": 3)", engine);
  const auto cpu = Open();
  ExpectSame(*gpu, *cpu, 2);
  for (uint32_t i = 1; i <= 3; ++i) {
    daemon_->Kill();
    Serve();
    ExpectSame(*gpu, *cpu, 7);
    EXPECT_EQ(gpu->reconnects(), i);
  }
}

TEST_F(ClientDecodeTest, ForkedChildLeavesTheFeedAlone) {
  const auto engine = std::make_shared<CpuDecodeEngine>();
  auto gpu = Open(kGpu, engine);
  const auto cpu = Open();
  ExpectSame(*gpu, *cpu, 2);
  const int exit_status = ExitStatusOfFork([&] {
    gpu.reset();
    return 0;
  });
  EXPECT_EQ(exit_status, 0);
  ExpectSame(*gpu, *cpu, 10);
}

}  // namespace
}  // namespace pinfeed
