// SPDX-License-Identifier: Apache-2.0
// Reads the parameters of one transform. In: a TransformSpec of which nothing is believed. Out: checked
// values, and every fault with the parameter's name.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/faults.h"
#include "common/spec/transform_spec.h"
#include "server/image/image.h"

namespace pinfeed {

// Purpose: gives one transform its parameters. A parameter that was not given is added to the spec with its
// default, so that two specs that mean the same compare equal. After a fault the values returned are possible
// ones, and count for nothing. Borrows the spec and the faults. Threads: one.
class Parameters {
 public:
  // `place` is the transform's, as "transforms[2] resize".
  Parameters(TransformSpec& spec, std::string place, Faults& faults);

  bool Has(const std::string& name) const { return spec_.parameters.contains(name); }
  // All values of the parameter.
  std::vector<double> Numbers(const std::string& name, std::vector<double> unset = {});
  std::vector<std::string> Words(const std::string& name, std::vector<std::string> unset = {});
  // Its only value.
  double Number(const std::string& name, double unset);
  bool Flag(const std::string& name) { return Number(name, 0) != 0; }
  std::string Word(const std::string& name, const std::string& unset);
  // A whole number within [least, most].
  int32_t Integer(const std::string& name, int32_t least, int32_t most, int32_t unset);
  double Probability(const std::string& name);  // 0.5 if not given

  // "size": the sides of an image in pixels, within kMaxImageSide and kMaxImagePixels. One value is a square.
  ImageSize Size();
  // The same of a "size" that has two values.
  ImageSize Size(double height, double width);
  // Whether it is a length in pixels that an image can have. A fault otherwise.
  bool CheckSide(const std::string& name, double side);

  // A fault of a parameter; of the transform itself when the name is empty.
  void Fault(const std::string& name, const std::string& reason);
  // Adds a fault for each parameter that was given and never asked for.
  void Finish();

 private:
  template <typename Values>
  Values Get(const std::string& name, Values unset, std::string_view kind);

  TransformSpec& spec_;
  const std::string place_;
  Faults& faults_;
  std::set<std::string> asked_;
};

// With at most ten digits.
std::string NumberText(double value);

}  // namespace pinfeed
