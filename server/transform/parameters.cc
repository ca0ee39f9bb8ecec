// SPDX-License-Identifier: Apache-2.0
#include "server/transform/parameters.h"

#include <cmath>
#include <cstdio>
#include <utility>

namespace pinfeed {

Parameters::Parameters(TransformSpec& spec, std::string place, Faults& faults)
    : spec_(spec), place_(std::move(place)), faults_(faults) {}

void Parameters::Fault(const std::string& name, const std::string& reason) {
  faults_.Add(place_ + (name.empty() ? "" : ".") + name, reason);
}

template <typename Values>
Values Parameters::Get(const std::string& name, Values unset, std::string_view kind) {
  asked_.insert(name);
  const auto [parameter, added] = spec_.parameters.try_emplace(name, unset);
  if (const auto* const values = std::get_if<Values>(&parameter->second)) return *values;
  Fault(name, "must be " + std::string(kind));
  return unset;
}

std::vector<double> Parameters::Numbers(const std::string& name, std::vector<double> unset) {
  return Get(name, std::move(unset), "numbers");
}

std::vector<std::string> Parameters::Words(const std::string& name, std::vector<std::string> unset) {
  return Get(name, std::move(unset), "text");
}

double Parameters::Number(const std::string& name, double unset) {
  const std::vector<double> values = Numbers(name, {unset});
  if (values.size() == 1) return values.front();
  Fault(name, "has " + std::to_string(values.size()) + " values; give one");
  return unset;
}

std::string Parameters::Word(const std::string& name, const std::string& unset) {
  const std::vector<std::string> values = Words(name, {unset});
  if (values.size() == 1) return values.front();
  Fault(name, "has " + std::to_string(values.size()) + " values; give one");
  return unset;
}

int32_t Parameters::Integer(const std::string& name, int32_t least, int32_t most, int32_t unset) {
  const double value = Number(name, unset);
  if (value >= least && value <= most && value == std::floor(value)) return static_cast<int32_t>(value);
  Fault(name, NumberText(value) + " is not within " + std::to_string(least) + " to " + std::to_string(most));
  return least;
}

double Parameters::Probability(const std::string& name) {
  const double p = Number(name, 0.5);
  if (p >= 0 && p <= 1) return p;
  Fault(name, NumberText(p) + " is not within 0 to 1");
  return 0;
}

bool Parameters::CheckSide(const std::string& name, double side) {
  if (side >= 1 && side <= kMaxImageSide && side == std::floor(side)) return true;
  Fault(name, NumberText(side) + " is not within 1 to " + std::to_string(kMaxImageSide));
  return false;
}

ImageSize Parameters::Size() {
  std::vector<double> sides = Numbers("size");
  if (sides.size() == 1) {
    sides.push_back(sides.front());
    spec_.parameters["size"] = sides;
  }
  if (sides.size() == 2) return Size(sides[0], sides[1]);
  Fault("size", "has " + std::to_string(sides.size()) + " values; give one, or height and width");
  return {1, 1};
}

ImageSize Parameters::Size(double height, double width) {
  bool sides = CheckSide("size", height);
  if (width != height) sides = CheckSide("size", width) && sides;
  if (!sides) return {1, 1};
  const ImageSize size{static_cast<int32_t>(width), static_cast<int32_t>(height)};
  if (int64_t{size.height} * size.width <= kMaxImagePixels) return size;
  Fault("size", std::to_string(size.height) + " x " + std::to_string(size.width) + " is over the limit of " +
                    std::to_string(kMaxImagePixels) + " pixels");
  return {1, 1};
}

void Parameters::Finish() {
  for (const auto& [name, value] : spec_.parameters) {
    if (!asked_.contains(name)) Fault(name, "is no parameter of " + spec_.name);
  }
}

std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

}  // namespace pinfeed
