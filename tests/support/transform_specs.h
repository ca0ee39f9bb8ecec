// SPDX-License-Identifier: Apache-2.0
// Transforms as tests write them: Resize{0, 256} in place of a TransformSpec with its parameters' names.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/base/faults.h"
#include "common/spec/tensor_spec.h"
#include "common/spec/transform_spec.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

struct Resize {
  uint32_t height = 0;  // 0: `width` is the length of the shorter side
  uint32_t width = 0;
  uint32_t max_size = 0;
  operator TransformSpec() const {  // NOLINT(google-explicit-constructor)
    TransformSpec spec{"resize", {}};
    if (height != 0) {
      spec.parameters["size"] = std::vector<double>{double(height), double(width)};
    } else if (width != 0 || max_size == 0) {
      spec.parameters["size"] = std::vector<double>{double(width)};
    }
    if (max_size != 0) spec.parameters["max_size"] = std::vector<double>{double(max_size)};
    return spec;
  }
};
inline TransformSpec Interpolated(TransformSpec spec, std::vector<std::string> interpolation) {
  spec.parameters["interpolation"] = std::move(interpolation);
  return spec;
}
struct CenterCrop {
  uint32_t height = 0;
  uint32_t width = 0;
  operator TransformSpec() const {  // NOLINT(google-explicit-constructor)
    return {"center_crop", {{"size", std::vector<double>{double(height), double(width)}}}};
  }
};
struct RandomResizedCrop {
  uint32_t height = 0;
  uint32_t width = 0;
  double scale_min = 0.08;
  double scale_max = 1.0;
  double ratio_min = 3.0 / 4.0;
  double ratio_max = 4.0 / 3.0;
  operator TransformSpec() const {  // NOLINT(google-explicit-constructor)
    return {"random_resized_crop",
            {{"size", std::vector<double>{double(height), double(width)}},
             {"scale", std::vector<double>{scale_min, scale_max}},
             {"ratio", std::vector<double>{ratio_min, ratio_max}}}};
  }
};
struct RandomHorizontalFlip {
  double p = 0.5;
  operator TransformSpec() const {  // NOLINT(google-explicit-constructor)
    return {"random_horizontal_flip", {{"p", std::vector<double>{p}}}};
  }
};
struct RandomVerticalFlip {
  double p = 0.5;
  operator TransformSpec() const {  // NOLINT(google-explicit-constructor)
    return {"random_vertical_flip", {{"p", std::vector<double>{p}}}};
  }
};
struct Pad {
  std::vector<double> padding;
  std::vector<double> fill = {0};
  std::string padding_mode = "constant";
  operator TransformSpec() const {  // NOLINT(google-explicit-constructor)
    return {"pad",
            {{"padding", padding}, {"fill", fill}, {"padding_mode", std::vector<std::string>{padding_mode}}}};
  }
};
struct RandomCrop {
  uint32_t height = 0;
  uint32_t width = 0;
  std::vector<double> padding = {0};
  bool pad_if_needed = false;
  std::vector<double> fill = {0};
  operator TransformSpec() const {  // NOLINT(google-explicit-constructor)
    return {"random_crop",
            {{"size", std::vector<double>{double(height), double(width)}},
             {"padding", padding},
             {"pad_if_needed", std::vector<double>{pad_if_needed ? 1.0 : 0.0}},
             {"fill", fill}}};
  }
};
struct Grayscale {
  double num_output_channels = 1;
  operator TransformSpec() const {  // NOLINT(google-explicit-constructor)
    return {"grayscale", {{"num_output_channels", std::vector<double>{num_output_channels}}}};
  }
};
struct Normalize {
  std::vector<double> mean;
  std::vector<double> std;
  operator TransformSpec() const {  // NOLINT(google-explicit-constructor)
    return {"normalize", {{"mean", mean}, {"std", std}}};
  }
};
struct ToDtype {
  DType dtype = DType::kUint8;
  bool scale = false;
  operator TransformSpec() const {  // NOLINT(google-explicit-constructor)
    return {"to_dtype",
            {{"dtype", std::vector<std::string>{std::string(DTypeName(dtype))}},
             {"scale", std::vector<double>{scale ? 1.0 : 0.0}}}};
  }
};

// One fault each.
inline std::vector<std::string> LinesOf(const Faults& faults) {
  std::vector<std::string> lines;
  std::istringstream text(faults.ToStatus().message());
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// The specs as a feed would use them. Throws when they have a fault.
inline TransformChain ChainOf(std::vector<TransformSpec> specs) {
  Faults faults;
  TransformChain chain = TransformChain::Parse(specs, faults);
  if (!faults.empty()) throw std::invalid_argument(faults.ToStatus().message());
  return chain;
}

}  // namespace pinfeed
