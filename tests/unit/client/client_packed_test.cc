// SPDX-License-Identifier: Apache-2.0
// Packed tensors on the host, of a daemon that places rows and extents as it likes.
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "common/spec/tensor_spec.h"
#include "pinfeed/pinfeed.hpp"
#include "tests/support/testing.h"
#include "tests/unit/client/client_fake_daemon.h"

namespace pinfeed {
namespace {

constexpr uint64_t kExtentsOffset = 1024;

// The image becomes a packed tensor of rows of 3 bytes.
void OfferPacked(v1::OpenFeedResponse& offer) {
  offer.mutable_tensors(0)->set_shape(0, -1);
  offer.mutable_tensors(0)->set_extents(3);
  v1::TensorPlace& extents = *offer.add_tensors();
  extents.set_name("image.extents");
  extents.set_dtype(v1::INT64);
  extents.add_shape(2);
  extents.set_offset(kExtentsOffset);
  extents.set_sample_bytes(sizeof(RowExtent));
}

// Slots with the rows (3 bytes each, at most 8) of 4 samples, their labels and extents.
class ClientPackedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    daemon_ = std::make_unique<FakeDaemon>(dir_.path(), FakeDaemon::Script{.offer = &OfferPacked});
    feed_ = std::make_unique<Feed>(kSpec, FeedOptions{.address = daemon_->address()});
  }
  // Row n has three bytes n.
  Batch Next(const std::vector<RowExtent>& extents) {
    FakeSession& session = daemon_->Session(0);
    session.Publish([&](BatchDescriptor& batch) {
      batch.samples = static_cast<uint32_t>(extents.size());
      std::byte* const slot = session.arena.data() + batch.slot * session.arena.size() / session.slot_count;
      std::memcpy(slot + kExtentsOffset, extents.data(), extents.size() * sizeof(RowExtent));
    });
    Batch batch = feed_->Next().value();
    auto* const rows = static_cast<uint8_t*>(batch[0].data());
    for (int row = 0; row < 8; ++row) std::memset(rows + 3 * row, row, 3);
    return batch;
  }

  const TempDir dir_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Feed> feed_;
};

TEST_F(ClientPackedTest, TensorsAreAsTheyLie) {
  const Batch batch = Next({{5, 2}, {0, 3}, {7, 0}});
  EXPECT_THAT(batch[0].shape(), ElementsAre(8, 3));
  EXPECT_EQ(batch[0].bytes(), 24U);
  EXPECT_TRUE(batch[0].packed());
  EXPECT_EQ(batch[0].raw().extents, 3U);
  EXPECT_THAT(batch[2].shape(), ElementsAre(3, 2));
  EXPECT_EQ(batch[2].data_as<int64_t>()[0], 5);
  EXPECT_THAT(batch.RowOffsets(0), ElementsAre(0, 2, 5, 5));
}

TEST_F(ClientPackedTest, OutputsAreInTheOrderOfTheSamples) {
  const std::vector<TensorView> outputs = feed_->Outputs();
  EXPECT_THAT(outputs[0].shape(), ElementsAre(8, 3));
  EXPECT_EQ(outputs[0].bytes(), 24U);
  Batch batch = Next({{5, 2}, {0, 3}, {7, 0}, {3, 1}});
  std::vector<uint8_t> rows(6 * 3 + 1, 0xee);  // as many as RowOffsets says, and one byte more
  std::vector<int64_t> labels(4);
  std::vector<int64_t> extents(8);
  ASSERT_EQ(batch.RowOffsets(0).back(), 6);
  batch.Write(nullptr, {rows.data(), labels.data(), extents.data()});
  EXPECT_THAT(rows, ElementsAre(5, 5, 5, 6, 6, 6, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0xee));
  EXPECT_THAT(extents, ElementsAre(0, 2, 2, 3, 5, 0, 5, 1));
}

TEST_F(ClientPackedTest, ExtentsThatLieAreNotFollowed) {
  for (const RowExtent lie : {RowExtent{-1, 1}, RowExtent{0, -1}, RowExtent{8, 1}, RowExtent{0, 9},
                              RowExtent{INT64_MAX, 1}, RowExtent{1, INT64_MAX}}) {
    Batch batch = Next({{0, 1}, lie});
    EXPECT_THROW((void)batch.RowOffsets(0), Error);
    EXPECT_THAT(pf_last_error(), HasSubstr("the rows of tensor 'image' lie outside of it"));
    std::vector<uint8_t> rows(24);
    std::vector<int64_t> numbers(8);
    EXPECT_THROW(batch.Write(nullptr, {rows.data(), numbers.data(), numbers.data()}), Error);
    FakeSession& session = daemon_->Session(0);
    const auto slot = static_cast<uint32_t>((session.published - 1) % session.slot_count);
    EXPECT_NE(session.Released(slot), session.published) << "it is still ours";
    batch.Release();
    EXPECT_EQ(session.Released(slot), session.published);
  }
  // Together more rows than there is memory for: an output of the size of the tensor would not hold them.
  EXPECT_THROW((void)Next({{0, 8}, {0, 1}}).RowOffsets(0), Error);
}

TEST_F(ClientPackedTest, RowsThatAreAddedAfterTheyWereCountedAreNotWritten) {
  Batch batch = Next({{0, 1}, {3, 2}});
  ASSERT_EQ(batch.RowOffsets(0).back(), 3);
  const RowExtent more{3, 3};
  auto* const extents = const_cast<int64_t*>(batch[2].data_as<int64_t>());
  std::memcpy(extents + 2, &more, sizeof more);
  ASSERT_EQ(batch.RowOffsets(0).back(), 4) << "the first count holds for what was allocated then";
  std::vector<uint8_t> rows(3 * 3 + 1, 0xee);
  std::vector<int64_t> numbers(4);
  EXPECT_THROW(batch.Write(nullptr, {rows.data(), numbers.data(), numbers.data()}), Error);
  EXPECT_THAT(pf_last_error(), HasSubstr("tensor 'image' got more rows after they were counted"));
  EXPECT_EQ(rows.back(), 0xee);
  batch.Release();
  // The next batch is counted anew.
  Batch next = Next({{0, 4}});
  rows.resize(4 * 3);
  next.Write(nullptr, {rows.data(), numbers.data(), numbers.data()});
  EXPECT_EQ(rows[9], 3);
}

TEST_F(ClientPackedTest, ABatchWithoutRowsNeedsNoMemoryForThem) {
  Batch batch = Next({{0, 0}, {8, 0}});
  std::vector<int64_t> numbers(4);
  EXPECT_THROW(batch.Write(nullptr, {nullptr, numbers.data(), numbers.data()}), Error)
      << "they were not counted";
  EXPECT_THAT(pf_last_error(), HasSubstr("the pointer for tensor 'image' is NULL"));
  ASSERT_EQ(batch.RowOffsets(0).back(), 0);
  batch.Write(nullptr, {nullptr, numbers.data(), numbers.data()});
}

TEST_F(ClientPackedTest, OneOfTwoThatReturnABatchAtOnceDoes) {
  for (int round = 0; round < 200; ++round) {
    const Batch batch = Next({{0, 8}});
    pf_batch_retain(batch.get());
    pf_batch_release(batch.get());
    std::array<std::vector<int64_t>, 2> memory{std::vector<int64_t>(16), std::vector<int64_t>(16)};
    std::array<pf_result, 2> results{};
    std::atomic<int> ready{0};
    const auto give_back = [&](size_t n) {
      void* const to = memory.at(n).data();
      const std::array<void*, 3> outputs{to, to, to};
      ++ready;
      while (ready < 2) std::this_thread::yield();
      results.at(n) = round % 2 == 0 ? pf_batch_write(batch.get(), outputs.data(), 3, nullptr)
                                     : pf_batch_release_on(batch.get(), nullptr);
    };
    std::thread other(give_back, 0);
    give_back(1);
    other.join();
    ASSERT_THAT(results, UnorderedElementsAre(PF_OK, PF_FAILED_PRECONDITION));
    pf_batch_info info;
    pf_batch_info_init(&info, sizeof info);
    const Batch next = Next({{0, 1}});
    ASSERT_EQ(pf_get_batch_info(next.get(), &info), PF_OK);
    ASSERT_EQ(info.held, 1U);
  }
}

TEST_F(ClientPackedTest, WhatIsNotPackedHasNoRows) {
  const Batch batch = Next({{0, 1}});
  int64_t offsets[5];
  EXPECT_EQ(pf_get_row_offsets(batch.get(), 1, offsets), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_get_row_offsets(batch.get(), 9, offsets), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_get_row_offsets(batch.get(), 0, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_get_row_offsets(nullptr, 0, offsets), PF_INVALID_ARGUMENT);
}

// Its struct ends before `extents`: it would take the rows of all samples for a tensor of so many samples.
TEST_F(ClientPackedTest, AProgramThatDoesNotKnowThemIsRefused) {
  const Batch batch = Next({{0, 1}});
  pf_tensor tensor;
  for (const uint32_t index : {0U, 1U}) {
    pf_tensor_init(&tensor, offsetof(pf_tensor, extents));
    const pf_result expected = index == 0 ? PF_FAILED_PRECONDITION : PF_OK;
    EXPECT_EQ(pf_get_tensor(batch.get(), index, &tensor), expected);
    EXPECT_EQ(pf_get_output(feed_->get(), index, &tensor), expected);
  }
}

using Offer = v1::OpenFeedResponse;

TEST(ClientPackedOfferTest, OffersThatLieAreRefused) {
  const std::vector<std::pair<std::function<void(Offer&)>, std::string>> lies = {
      {[](Offer& o) { o.mutable_tensors(0)->set_shape(0, 2); }, "its first dimension is not -1"},
      {[](Offer& o) { o.mutable_tensors(0)->clear_shape(); }, "its first dimension is not -1"},
      {[](Offer& o) { o.mutable_tensors(0)->set_shape(1, 0); }, "of empty rows"},
      {[](Offer& o) { o.mutable_tensors(0)->set_shape(1, -3); }, "negative dimension"},
      {[](Offer& o) { o.mutable_tensors(0)->set_sample_bytes(7); }, "sample_bytes 7"},
      {[](Offer& o) { o.mutable_tensors(0)->set_sample_bytes(3'000'000); }, "ends after its slot"},
      {[](Offer& o) { o.mutable_tensors(0)->set_extents(4); }, "no usable tensor of its samples' rows"},
      {[](Offer& o) { o.mutable_tensors(0)->set_extents(2); }, "no usable tensor of its samples' rows"},
      {[](Offer& o) { o.mutable_tensors(1)->set_lengths(3); }, "is of rows, but has no dimension"},
      {[](Offer& o) { o.mutable_tensors(2)->set_lengths(1); }, "no usable tensor of its samples' rows"},
      {[](Offer& o) {
         v1::TensorPlace& other = *o.add_tensors();
         other = o.tensors(0);
         other.set_name("other");
       },
       "no usable tensor of its samples' rows"},
      {[](Offer& o) {
         OfferHandle(o);
         o.mutable_outputs(0)->clear_shape();
       },
       "not made of its packed tensor"},
      {[](Offer& o) {
         OfferHandle(o);
         o.mutable_outputs()->RemoveLast();
       },
       "lacks the output of its samples' rows"},
  };
  for (const auto& [lie, message] : lies) {
    const TempDir dir;
    FakeDaemon::Script script;
    script.offer = [&edit = lie](Offer& offer) {  // clang 14 captures no structured binding
      OfferPacked(offer);
      edit(offer);
    };
    const FakeDaemon daemon(dir.path(), std::move(script));
    EXPECT_THROW(Feed(kSpec, {.address = daemon.address()}), Error);
    EXPECT_THAT(pf_last_error(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace pinfeed
