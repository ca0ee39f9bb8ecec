// SPDX-License-Identifier: Apache-2.0
#include "common/base/result.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using ::testing::Eq;

struct Base {
  virtual ~Base() = default;
};
struct Derived : Base {};

template <typename From, typename To>
constexpr bool kBecomes = std::is_convertible_v<From, Result<To>>;

static_assert(kBecomes<std::unique_ptr<Derived>, std::unique_ptr<Base>>);
static_assert(kBecomes<Result<std::unique_ptr<Derived>>, std::shared_ptr<const Base>>);
static_assert(kBecomes<std::nullptr_t, std::shared_ptr<Base>>);
static_assert(kBecomes<std::nullopt_t, std::optional<int>> && kBecomes<Result<int>, std::optional<int>>);
static_assert(!kBecomes<std::string, std::string_view> && !kBecomes<Result<std::string>, std::string_view>,
              "it would outlive the string");
static_assert(!kBecomes<std::vector<int>, std::span<const int>>, "it would outlive the vector");
static_assert(!kBecomes<std::nullptr_t, std::string>, "that is undefined");
static_assert(!kBecomes<Result<uint64_t>, uint8_t> && !kBecomes<Result<int*>, bool>, "bits would be lost");
static_assert(!kBecomes<std::unique_ptr<Base>, std::unique_ptr<Derived>>);

Result<std::unique_ptr<Derived>> Make(bool fails) {
  if (fails) return NotFound("it");
  return std::make_unique<Derived>();
}

TEST(ResultTest, ConvertsWithItsValueOrItsError) {
  const Result<std::unique_ptr<Base>> made = Make(false);
  ASSERT_OK(made.status());
  EXPECT_NE(*made, nullptr);
  const Result<std::shared_ptr<const Base>> failed = Make(true);
  EXPECT_THAT(failed.status(), StatusIs(Code::kNotFound, Eq("it")));
}

TEST(ResultTest, AContextIsAddedToAnErrorOnly) {
  EXPECT_THAT(Make(true).WithContext("make").status(), StatusIs(Code::kNotFound, Eq("make: it")));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Derived> made, Make(false).WithContext("make"));
  EXPECT_NE(made, nullptr);
}

}  // namespace
}  // namespace pinfeed
