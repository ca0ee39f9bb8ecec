// SPDX-License-Identifier: Apache-2.0
// Reads named values of a spec. In: a ParameterMap of which nothing is believed. Out: values of the types
// asked for, and every fault with its name.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/faults.h"
#include "common/spec/parameters.h"

namespace pinfeed {

// Purpose: gives one reader its parameters. A parameter that was not given is added to the map with its
// default, so that two specs that mean the same compare equal. After a fault the values returned are possible
// ones, and count for nothing. Borrows the map and the faults. Threads: one.
class ParameterReader {
 public:
  // `place` is where the parameters stand, as "transforms[2] resize".
  ParameterReader(ParameterMap& parameters, std::string place, Faults& faults);

  bool Has(const std::string& name) const { return parameters_.contains(name); }
  // All values of the parameter.
  std::vector<double> Numbers(const std::string& name, std::vector<double> unset = {});
  std::vector<std::string> Words(const std::string& name, std::vector<std::string> unset = {});
  // Its only value.
  double Number(const std::string& name, double unset);
  bool Flag(const std::string& name) { return Number(name, 0) != 0; }
  std::string Word(const std::string& name, const std::string& unset);

  // A fault of a parameter; of the whole when the name is empty.
  void Fault(const std::string& name, const std::string& reason);
  // Adds a fault for each parameter that was given and never asked for: it is none of `owner`.
  void Finish(const std::string& owner);

 protected:
  void Set(const std::string& name, Parameter value) { parameters_[name] = std::move(value); }

 private:
  template <typename Values>
  Values Get(const std::string& name, Values unset, std::string_view kind);

  ParameterMap& parameters_;
  const std::string place_;
  Faults& faults_;
  std::set<std::string> asked_;
};

// With at most ten digits.
std::string NumberText(double value);

}  // namespace pinfeed
