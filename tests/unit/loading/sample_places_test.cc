// SPDX-License-Identifier: Apache-2.0
#include "server/loading/sample_places.h"

#include <array>
#include <cstring>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

// A batch of 4 samples: rows of 2 bytes, 3 a sample; their extents; and a number.
class SamplePlacesTest : public ::testing::Test {
 protected:
  static BatchLayout Layout() {
    TensorSpec rows{"rows", DType::kUint8, {3, 2}};
    rows.extents = 1;
    return BatchLayout::Create({rows, {"rows.extents", DType::kInt64, {2}}, {"number", DType::kInt64, {}}}, 4)
        .value();
  }
  // Of a piece of samples 2 and 3.
  SamplePlaces Places() {
    return SamplePlaces({rows_, std::span(extents_).first(16), std::span(numbers_).first(8)}, layout_, 2,
                        used_);
  }
  RowExtent Extent(size_t sample) const {
    RowExtent extent;
    std::memcpy(&extent, extents_.data() + sample * sizeof extent, sizeof extent);
    return extent;
  }
  static std::vector<std::byte> Rows(size_t count, int value) {
    return std::vector<std::byte>(2 * count, std::byte(value));
  }

  const BatchLayout layout_ = Layout();
  std::array<std::byte, 12> rows_{};
  std::array<std::byte, 32> extents_{};
  std::array<std::byte, 16> numbers_{};
  std::array<std::atomic<uint64_t>, 3> used_{};
};

TEST_F(SamplePlacesTest, RowsComeOneBehindTheOther) {
  SamplePlaces later = Places();
  later.Next();
  ASSERT_OK(later.Pack(0, Rows(4, 7)));  // more than a sample's share
  SamplePlaces first = Places();
  ASSERT_OK(first.Pack(0, Rows(2, 9)));
  // Counted from the start of the tensor, of which samples 0 and 1 have the first 6 rows.
  EXPECT_EQ(std::pair(Extent(1).first, Extent(1).count), std::pair(int64_t{6}, int64_t{4}));
  EXPECT_EQ(std::pair(Extent(0).first, Extent(0).count), std::pair(int64_t{10}, int64_t{2}));
  EXPECT_EQ(rows_[0], std::byte{7});
  EXPECT_EQ(rows_[7], std::byte{7});
  EXPECT_EQ(rows_[8], std::byte{9});
}

TEST_F(SamplePlacesTest, NothingIsWrittenBehindThePiecesMemory) {
  SamplePlaces places = Places();
  ASSERT_OK(places.Pack(0, Rows(5, 1)));
  places.Next();
  EXPECT_THAT(places.Pack(0, Rows(2, 2)),
              StatusIs(Code::kResourceExhausted, HasSubstr("field 'rows': 2 rows do not fit")));
  EXPECT_EQ(rows_[10], std::byte{0});
  EXPECT_EQ(Extent(1).count, 0);
  // Not even when the count of rows has gone beyond it.
  EXPECT_FALSE(places.Pack(0, Rows(1, 3)).ok());
}

TEST_F(SamplePlacesTest, ZerosHaveNoRows) {
  SamplePlaces places = Places();
  ASSERT_OK(places.Pack(0, Rows(2, 5)));
  numbers_.fill(std::byte{1});
  places.WriteZeros();
  EXPECT_EQ(Extent(0).count, 0);
  EXPECT_EQ(numbers_[7], std::byte{0});
  EXPECT_EQ(numbers_[8], std::byte{1}) << "another sample's";
  EXPECT_EQ(rows_[0], std::byte{5}) << "others' rows may lie there";
}

}  // namespace
}  // namespace pinfeed
