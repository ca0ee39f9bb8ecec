// SPDX-License-Identifier: Apache-2.0
// What every C++ test shares: assertions for Status and Result, a temporary directory, a forked child, and
// (in testing.cc) main with its watchdog.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/base/status.h"

namespace pinfeed {

// The matchers of most tests.
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// gtest prints these in failure messages.
inline void PrintTo(const Status& status, std::ostream* out) {
  *out << status.ToString();
}
inline void PrintTo(Code code, std::ostream* out) {
  *out << CodeName(code);
}

inline const Status& StatusOf(const Status& status) {
  return status;
}
template <typename T>
const Status& StatusOf(const Result<T>& result) {
  return result.status();
}

// EXPECT_THAT(Open(path), StatusIs(Code::kNotFound, HasSubstr(path))): for a Status or a Result.
MATCHER_P(StatusIs, code, std::string("has code ") + std::string(CodeName(code))) {
  *result_listener << "which is " << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code;
}
MATCHER_P2(StatusIs, code, message,
           std::string("has code ") + std::string(CodeName(code)) + " and a message that " +
               ::testing::DescribeMatcher<std::string>(message, negation)) {
  *result_listener << "which is " << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code && ::testing::Matches(message)(StatusOf(arg).message());
}

// Purpose: a fresh directory under $TMPDIR (else /tmp), removed with all it holds when the guard dies.
// Owns: the directory. Threads: one. Errors: a directory that cannot be made ends the test program.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  // Writes a file below the directory, with the folders it needs, and returns its path.
  std::filesystem::path Write(std::string_view name, std::string_view content) const;
  std::filesystem::path Write(std::string_view name, std::span<const std::byte> content) const;

 private:
  std::filesystem::path path_;
};

// Purpose: sets (or, with nullptr, unsets) an environment variable and puts the old value back when the guard
// dies. Threads: no other thread may read the environment meanwhile.
class ScopedEnv {
 public:
  ScopedEnv(std::string name, const char* value);
  ~ScopedEnv();
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  std::string name_;
  bool was_set_;
  std::string old_value_;
};

// Forks a child that runs `body` and exits with what it returns, and waits for that. Returns the exit status,
// or -1 if a signal ended the child. No other thread comes along: `body` may wait for none.
int ExitStatusOfFork(const std::function<int()>& body);

}  // namespace pinfeed

#define EXPECT_OK(expression) EXPECT_THAT((expression), ::pinfeed::StatusIs(::pinfeed::Code::kOk))
#define ASSERT_OK(expression) ASSERT_THAT((expression), ::pinfeed::StatusIs(::pinfeed::Code::kOk))

// ASSERT_OK_AND_ASSIGN(auto file, Open(path)): the value, or a failed test. In functions that return void.
#define ASSERT_OK_AND_ASSIGN(declaration, expression) \
  PF_ASSERT_OK_AND_ASSIGN(PF_CONCAT(pf_result_, __LINE__), declaration, expression)
#define PF_ASSERT_OK_AND_ASSIGN(result, declaration, expression)                 \
  auto result = (expression);                                                    \
  ASSERT_TRUE(result.ok()) << #expression << ": " << result.status().ToString(); \
  declaration = std::move(result).value()
