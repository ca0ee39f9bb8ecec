// SPDX-License-Identifier: Apache-2.0
// A value, or the Status that says why there is none. The method names follow std::expected, which our
// compilers lack in C++20.
#pragma once

#include <concepts>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "common/base/status.h"

namespace pinfeed {

template <typename T>
concept HasSize = requires(const T& value) {
  value.size();
};
// What a Result makes a T of by itself. Not a number, which would be cut, or bool of a pointer; nor what has
// a size: a string_view of a string would outlive it.
template <typename U, typename T>
concept ConvertsInResult = !std::same_as<std::remove_cvref_t<U>, T> && !std::is_arithmetic_v<T> &&
                           !HasSize<T> && std::convertible_to<U, T>;

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor): allows `return value;`
  // Of what converts to a T, such as a pointer to a derived class; or of a Result of that.
  template <ConvertsInResult<T> U>
  Result(U&& value)  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload): no Result
      : value_(std::in_place, std::forward<U>(value)) {}
  template <ConvertsInResult<T> U>
  Result(Result<U> other) : status_(other.status()) {  // NOLINT(google-explicit-constructor)
    if (other.ok()) value_.emplace(*std::move(other));
  }
  // Precondition: !status.ok().
  Result(Status status)
      : status_(std::move(status)) {  // NOLINT(google-explicit-constructor): allows `return status;`
    PF_CHECK(!status_.ok(), "a Result without value needs an error");
  }

  bool has_value() const { return value_.has_value(); }
  bool ok() const { return value_.has_value(); }
  // OK if there is a value.
  const Status& status() const { return status_; }
  // As Status::WithContext.
  Result WithContext(std::string_view context) && {
    status_ = status_.WithContext(context);
    return std::move(*this);
  }

  // Precondition of value(), operator* and operator->: has_value().
  T& value() & {
    PF_CHECK(value_.has_value(), status_.message());
    return *value_;
  }
  const T& value() const& {
    PF_CHECK(value_.has_value(), status_.message());
    return *value_;
  }
  T&& value() && {
    PF_CHECK(value_.has_value(), status_.message());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace pinfeed

#define PF_CONCAT_INNER(a, b) a##b
#define PF_CONCAT(a, b) PF_CONCAT_INNER(a, b)
// ASSIGN_OR_RETURN(auto file, Open(path)); the expression must yield a Result.
#define ASSIGN_OR_RETURN(declaration, expression) \
  PF_ASSIGN_OR_RETURN(PF_CONCAT(pf_result_, __LINE__), declaration, expression)
#define PF_ASSIGN_OR_RETURN(result, declaration, expression) \
  auto result = (expression);                                \
  if (!result.ok()) return result.status();                  \
  declaration = std::move(result).value()
