// SPDX-License-Identifier: Apache-2.0
#include "server/transform/transform_chain.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <variant>

namespace pinfeed {
namespace {

// Of numbers, the shortest text that no other number has.
std::string TextOf(const TransformSpec& spec) {
  std::string text = spec.name;
  for (const auto& [name, values] : spec.parameters) {
    text += ' ' + name + '=';
    if (const auto* const words = std::get_if<std::vector<std::string>>(&values)) {
      for (const std::string& word : *words) text += word + ',';
      continue;
    }
    for (const double number : std::get<std::vector<double>>(values)) {
      std::array<char, 32> digits{};
      text.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
      text += ',';
    }
  }
  return text;
}

// Bounds the time that one sample can take. An image is cropped and resized to kMaxImagePixels at a time.
Status CheckPixels(const GeometryPlan& plan) {
  constexpr int64_t kMost = 4 * kMaxImagePixels;
  int64_t pixels = 0;
  for (const GeometryStep& step : plan.steps)
    pixels += int64_t{step.crop.width} * step.crop.height + int64_t{step.width} * step.height;
  if (pixels <= kMost) return OkStatus();
  return ResourceExhausted("the transforms crop and resize the image to " + std::to_string(pixels) +
                           " pixels, all steps together; the limit is " + std::to_string(kMost) +
                           ": resize to fewer, or less often");
}

}  // namespace

TransformChain TransformChain::Parse(std::vector<TransformSpec>& specs, Faults& faults) {
  TransformChain chain;
  ImageForm form;           // only its element type is known yet
  bool recoloured = false;  // an earlier transform has changed the element type
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string place = "transforms[" + std::to_string(i) + "]";
    const ParseTransform parse = FindTransform(specs[i].name);
    if (parse == nullptr) {
      faults.Add(place, "names no operation that this daemon knows");
      continue;
    }
    Link link{place + " " + specs[i].name, nullptr, {}};
    TransformParameterReader parameters(specs[i].parameters, link.place, faults);
    link.transform = parse(parameters);
    if (recoloured && link.transform->NeedsBytes()) {
      parameters.Fault("",
                       "comes after normalize or to_dtype, but works on uint8 pixels; move it before them");
    }
    parameters.Finish(specs[i].name);
    link.text = TextOf(specs[i]);
    const DType before = form.dtype;
    link.transform->Follow(form, [](const std::string& /*fault*/) {});
    recoloured |= form.dtype != before || form.dtype != DType::kUint8;
    chain.links_.push_back(std::move(link));
  }
  return chain;
}

bool TransformChain::Has(GpuForm form) const {
  return std::ranges::any_of(links_, [form](const Link& link) { return link.transform->gpu_form() == form; });
}

std::optional<std::string> TransformChain::FirstThatMovesPixels() const {
  return First(&Transform::MovesPixels);
}

std::optional<std::string> TransformChain::FirstThatFillsWithColour() const {
  return First(&Transform::FillsWithColour);
}

std::optional<std::string> TransformChain::First(bool (Transform::*matches)() const) const {
  const auto found =
      std::ranges::find_if(links_, [matches](const Link& link) { return (*link.transform.*matches)(); });
  return found == links_.end() ? std::nullopt : std::optional(found->place);
}

ImageForm TransformChain::Follow(ImageForm form, Faults& faults) const {
  for (const Link& link : links_)
    link.transform->Follow(form, [&](const std::string& fault) { faults.Add(link.place, fault); });
  return form;
}

Status TransformChain::Plan(const RandomKey& key, ImageSize size, GeometryPlan& plan, size_t first,
                            size_t last) const {
  GeometryPlanner planner(plan, size);
  for (size_t i = first; i < std::min(last, links_.size()); ++i) {
    RETURN_IF_ERROR(
        links_[i].transform->Plan(planner, {key.seed, key.epoch, key.sample, static_cast<uint32_t>(i)}));
  }
  return CheckPixels(plan);
}

Result<SampleView> TransformChain::View(uint64_t seed, ImageSize size, size_t first) const {
  ViewPlanner planner(seed, size);
  for (size_t i = first; i < links_.size(); ++i) {
    planner.Begin(static_cast<uint32_t>(i));
    if (!links_[i].transform->Show(planner)) {
      return InvalidArgument(links_[i].place +
                             ": what comes behind the first random transform is done by the client's kernel, "
                             "which flips, and crops or pads once, in at most " +
                             std::to_string(kMaxViewSteps) + " steps");
    }
  }
  return planner.view();
}

size_t TransformChain::fixed() const {
  const auto varies = [](const Link& link) { return link.transform->Varies(); };
  return static_cast<size_t>(std::ranges::find_if(links_, varies) - links_.begin());
}

std::string TransformChain::GeometryText(size_t count) const {
  std::string text;
  for (size_t i = 0; i < std::min(count, links_.size()); ++i) {
    // Those of another form do nothing to the geometry, or vary.
    if (links_[i].transform->gpu_form() == GpuForm::kNone) text += links_[i].text + ';';
  }
  return text;
}

PixelValues TransformChain::Recolour(size_t channel) const {
  PixelValues pixels;
  for (size_t v = 0; v < pixels.values.size(); ++v) pixels.values[v] = static_cast<float>(v);
  for (const Link& link : links_) link.transform->Recolour(channel, pixels);
  return pixels;
}

}  // namespace pinfeed
