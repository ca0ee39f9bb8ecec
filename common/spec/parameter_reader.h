// SPDX-License-Identifier: Apache-2.0
// Reads the named parameters of one part of a spec, such as one transform. In: an untrusted ParameterMap.
// Out: values of the requested types, and every fault with the parameter's name.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/faults.h"
#include "common/spec/parameter_map.h"

namespace pinfeed {

// Purpose: reads parameters, checks their types and fills in defaults. An omitted parameter is added to the
// map with its default, so that equivalent specs compare equal. After a fault, reading continues with default
// values, so that all faults are found. The caller then discards what it has read. Borrows the map and the
// faults. Threads: one.
class ParameterReader {
 public:
  // `place` is the part of the spec that the faults name, such as "transforms[2] resize".
  ParameterReader(ParameterMap& parameters, std::string place, Faults& faults);

  // Return all values of a parameter; `unset` if it was omitted.
  std::vector<double> Numbers(const std::string& name, std::vector<double> unset = {});
  std::vector<std::string> Words(const std::string& name, std::vector<std::string> unset = {});
  // Return the value of a parameter that has exactly one; `unset` if it was omitted.
  double Number(const std::string& name, double unset);
  bool Flag(const std::string& name) { return Number(name, 0) != 0; }  // false if it was omitted
  std::string Word(const std::string& name, const std::string& unset);

  // Adds a fault of a parameter, or of the whole part if `name` is empty.
  void Fault(const std::string& name, const std::string& reason);
  // Call it last. Adds a fault for each given parameter that was never read: `owner`, such as "resize", has
  // no such parameter.
  void Finish(const std::string& owner);

 protected:
  void Set(const std::string& name, ParameterValues value) { parameters_[name] = std::move(value); }

 private:
  template <typename Values>
  Values Get(const std::string& name, Values unset, std::string_view kind);
  template <typename Value>
  Value Only(const std::string& name, const std::vector<Value>& values, const Value& unset);

  ParameterMap& parameters_;
  const std::string place_;
  Faults& faults_;
  std::set<std::string> read_;  // the names read so far
};

// Formats a number with at most ten significant digits.
std::string NumberText(double value);

}  // namespace pinfeed
