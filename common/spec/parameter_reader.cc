// SPDX-License-Identifier: Apache-2.0
#include "common/spec/parameter_reader.h"

#include <cstdio>
#include <utility>

namespace pinfeed {

ParameterReader::ParameterReader(ParameterMap& parameters, std::string place, Faults& faults)
    : parameters_(parameters), place_(std::move(place)), faults_(faults) {}

void ParameterReader::Fault(const std::string& name, const std::string& reason) {
  faults_.Add(place_ + (name.empty() ? "" : ".") + name, reason);
}

template <typename Values>
Values ParameterReader::Get(const std::string& name, Values unset, std::string_view kind) {
  read_.insert(name);
  const auto [parameter, added] = parameters_.try_emplace(name, unset);
  if (const auto* const values = std::get_if<Values>(&parameter->second)) return *values;
  Fault(name, "must be " + std::string(kind));
  return unset;
}

std::vector<double> ParameterReader::Numbers(const std::string& name, std::vector<double> unset) {
  return Get(name, std::move(unset), "numbers");
}

std::vector<std::string> ParameterReader::Words(const std::string& name, std::vector<std::string> unset) {
  return Get(name, std::move(unset), "text");
}

template <typename Value>
Value ParameterReader::Only(const std::string& name, const std::vector<Value>& values, const Value& unset) {
  if (values.size() == 1) return values.front();
  Fault(name, "has " + std::to_string(values.size()) + " values; give one");
  return unset;
}

double ParameterReader::Number(const std::string& name, double unset) {
  return Only(name, Numbers(name, {unset}), unset);
}

std::string ParameterReader::Word(const std::string& name, const std::string& unset) {
  return Only(name, Words(name, {unset}), unset);
}

void ParameterReader::Finish(const std::string& owner) {
  for (const auto& [name, value] : parameters_) {
    if (!read_.contains(name)) Fault(name, "is no parameter of " + owner);
  }
}

std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

}  // namespace pinfeed
