// SPDX-License-Identifier: Apache-2.0
#include "client/copies/staged_bytes.h"

#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

class StagedBytesTest : public ::testing::Test {
 protected:
  StagedBytesTest() : source_(100), out_(100, std::byte{0xff}) {
    for (size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(i + 1);
  }

  // Each range as its numbers.
  std::vector<std::vector<uint64_t>> Read(uint64_t begin, uint64_t end) {
    std::vector<std::vector<uint64_t>> numbers;
    staged_.Read(begin, end, out_.data());
    for (const TargetRange& range : staged_.Targets(begin, end))
      numbers.push_back({range.target, range.offset, range.bytes});
    return numbers;
  }
  std::vector<int> Out(size_t count) const {
    std::vector<int> values;
    for (size_t i = 0; i < count; ++i) values.push_back(std::to_integer<int>(out_[i]));
    return values;
  }

  std::vector<std::byte> source_;
  std::vector<std::byte> out_;
  StagedBytes staged_;
};

TEST_F(StagedBytesTest, TargetsThatFollowEachOtherAreOneRange) {
  staged_.Add({source_.data(), 3, 1000, 4});
  staged_.Add({source_.data() + 10, 2, 1004, 2});
  staged_.Add({source_.data() + 20, 1, 1007, 1});
  EXPECT_EQ(staged_.size(), 7U);
  EXPECT_THAT(Read(0, 7), ElementsAre(ElementsAre(1000, 0, 6), ElementsAre(1007, 6, 1)));
  EXPECT_THAT(Out(8), ElementsAre(1, 2, 3, 0, 11, 12, 21, 0xff));
}

TEST_F(StagedBytesTest, PiecesMayBeginAndEndAnywhere) {
  staged_.Add({source_.data(), 3, 1000, 6});
  staged_.Add({source_.data() + 10, 4, 2000, 4});
  EXPECT_THAT(Read(1, 2), ElementsAre(ElementsAre(1001, 0, 1)));
  EXPECT_THAT(Out(2), ElementsAre(2, 0xff));
  EXPECT_THAT(Read(4, 8), ElementsAre(ElementsAre(1004, 0, 2), ElementsAre(2000, 2, 2)));
  EXPECT_THAT(Out(4), ElementsAre(0, 0, 11, 12));
  EXPECT_THAT(Read(8, 10), ElementsAre(ElementsAre(2002, 0, 2)));
  EXPECT_THAT(Read(5, 5), IsEmpty());
}

TEST_F(StagedBytesTest, EmptyCopiesAreLeftOut) {
  staged_.Add({nullptr, 0, 0, 0});
  EXPECT_EQ(staged_.size(), 0U);
  staged_.Add({source_.data(), 1, 1000, 1});
  staged_.Add({nullptr, 0, 1001, 2});  // zeros alone
  EXPECT_THAT(Read(0, 3), ElementsAre(ElementsAre(1000, 0, 3)));
  EXPECT_THAT(Out(3), ElementsAre(1, 0, 0));
}

}  // namespace
}  // namespace pinfeed
