// SPDX-License-Identifier: Apache-2.0
// The decode threads of a session and their ring, with slots and a publish page under the test's hands.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/src/decode/decoded_batches.h"
#include "common/os/start_thread.h"
#include "common/os/unix_address.h"
#include "tests/integration/client_decode_fixture.h"

namespace pinfeed {

// A publish page and an arena of the test's own, with one batch of a real feed in slot 0.
class DecodedBatchesTest : public ClientDecodeTest {
 protected:
  void SetUp() override {
    ClientDecodeTest::SetUp();
    const auto feed = Open(kGpu, engine_);
    ASSERT_OK_AND_ASSIGN(Batch* const batch, feed->Next(std::chrono::seconds(30)));
    offer_ = feed->offer();
    const std::byte* const slot = batch->session().slots().address(batch->descriptor().slot);
    arena_.assign(slot, slot + offer_.layout.slot_stride);
    page_.ring[0] = batch->descriptor();
    page_.ring[0].sequence = 0;
    page_.ring[0].slot = 0;
    batch->Release();
  }
  // Connects lifeline_. The test is the daemon, too.
  void ConnectLifeline() {
    const std::string path = (dir_ / "lifeline-of-the-test").string();
    const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(AtSocketPath(::bind, listener.get(), path), 0);
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    std::thread daemon = StartThread("daemon", [&] {
      daemon_end_.reset(::accept(listener.get(), nullptr, nullptr));
      const LifelineFrame welcome = MakeLifelineFrame(LifelineKind::kWelcome);
      EXPECT_EQ(::send(daemon_end_.get(), &welcome, sizeof welcome, 0), static_cast<ssize_t>(sizeof welcome));
    });
    std::vector<UniqueFd> fds;
    Result<Lifeline> lifeline =
        Lifeline::Attach(path, FirstFrame(LifelineKind::kHello, {}), 0, In(std::chrono::seconds(30)), &fds);
    daemon.join();
    ASSERT_OK(lifeline);
    lifeline_ = *std::move(lifeline);
  }
  // `link`: to the member that decodes.
  Result<std::unique_ptr<DecodedBatches>> Start(UniqueFd link = UniqueFd()) {
    return DecodedBatches::Start(offer_, {page_, offer_.slot_count, offer_.layout.batch_size}, arena_.data(),
                                 engine_, lifeline_, std::move(link));
  }
  void Publish() {
    page_.published = 1;
    page_.wake = 1;
    PublishReader(page_, 1, 1).WakeSleepers();
  }
  // Batches like the first at the following places, all at once.
  void PublishUpTo(uint64_t count) {
    for (uint64_t n = page_.published; n < count; ++n) {
      page_.ring[n] = page_.ring[0];
      page_.ring[n].sequence = n;
      page_.ring[n].batch_index = page_.ring[0].batch_index + n;
    }
    page_.published = count;
    page_.wake = static_cast<uint32_t>(count);
    PublishReader(page_, 1, 1).WakeSleepers();
  }
  // Batch 0 is decoded, three more are published, and a thread is held that decodes one of them.
  void DecodeOneAndHoldTheNext(const DecodedBatches& batches) {
    Publish();
    batches.AwaitDecoded(0, std::chrono::seconds(30));
    engine_->HoldDecoders(true);
    PublishUpTo(4);
    EXPECT_TRUE(engine_->AwaitHeld());
  }
  static SteadyTime In(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

  const std::shared_ptr<CpuDecodeEngine> engine_ = std::make_shared<CpuDecodeEngine>();
  Lifeline lifeline_;
  UniqueFd daemon_end_;
  FeedOffer offer_;
  PublishPage page_{};
  std::vector<std::byte> arena_;
};

}  // namespace pinfeed
