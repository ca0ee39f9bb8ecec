// SPDX-License-Identifier: Apache-2.0
// The text of every fault of a spec.
#include <functional>
#include <limits>
#include <vector>

#include "tests/unit/proto/read_spec.h"

namespace pinfeed {
namespace {

struct Fault {
  const char* text;  // of the whole error
  std::function<void(v1::FeedSpec&)> make;
};

class ConvertFaultTest : public ::testing::TestWithParam<int> {};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

const std::vector<Fault>& AllFaults() {
  static const std::vector<Fault> faults = {
      {"dataset: needs a name or a path", [](auto& s) { s.clear_dataset(); }},
      {"dataset: needs a name or a path", [](auto& s) { s.mutable_dataset()->clear_path(); }},
      {"dataset: has both a name and a path; give one of them",
       [](auto& s) { s.mutable_dataset()->set_name("n"); }},
      {"dataset.name: has 257 bytes, at most 256 are possible",
       [](auto& s) {
         s.mutable_dataset()->clear_path();
         s.mutable_dataset()->set_name(std::string(257, 'n'));
       }},
      {"dataset.path: is not absolute; the daemon does not know the client's working directory",
       [](auto& s) { s.mutable_dataset()->set_path("data"); }},
      {"dataset.path: holds a NUL byte",
       [](auto& s) { s.mutable_dataset()->set_path(std::string("/a\0b", 4)); }},
      {"dataset.path: has 4096 bytes, more than a path can have",
       [](auto& s) { s.mutable_dataset()->set_path("/" + std::string(4095, 'p')); }},
      {"dataset.format: 'zip' is none of image_folder, manifest, npy, tokens, webdataset",
       [](auto& s) { s.mutable_dataset()->set_format("zip"); }},
      {"dataset.format: holds a control character", [](auto& s) { s.mutable_dataset()->set_format("a\nb"); }},
      {"dataset.sequence_length: must be at least 1 with the format tokens",
       [](auto& s) { s.mutable_dataset()->set_format("tokens"); }},
      {"dataset.sequence_length: is for the format tokens only\ndataset.stride: is for the format tokens "
       "only",
       [](auto& s) {
         s.mutable_dataset()->set_format("npy");
         s.mutable_dataset()->set_sequence_length(1);
         s.mutable_dataset()->set_stride(1);
       }},
      {"dataset.token_dtype: is neither uint16 nor uint32",
       [](auto& s) { s.mutable_dataset()->set_token_dtype("int8"); }},
      {"batch_size: must be at least 1", [](auto& s) { s.set_batch_size(0); }},
      {"order: 9 is not a known value", [](auto& s) { s.set_order(static_cast<v1::FeedSpec::Order>(9)); }},
      {"image_layout: 9 is not a known value",
       [](auto& s) { s.set_image_layout(static_cast<v1::FeedSpec::ImageLayout>(9)); }},
      {"on_bad_sample: -1 is not a known value",
       [](auto& s) { s.set_on_bad_sample(static_cast<v1::FeedSpec::OnBadSample>(-1)); }},
      {"sharing: 9 is not a known value",
       [](auto& s) { s.set_sharing(static_cast<v1::FeedSpec::Sharing>(9)); }},
      {"backend: 9 is not a known value",
       [](auto& s) { s.set_backend(static_cast<v1::FeedSpec::Backend>(9)); }},
      {"rank: 2 is not below the world_size of 2",
       [](auto& s) {
         s.set_rank(2);
         s.set_world_size(2);
       }},
      {"masks[1]: is listed twice",
       [](auto& s) {
         s.add_masks("m");
         s.add_masks("m");
       }},
      {"masks[0]: is empty; it must be the name of a field", [](auto& s) { s.add_masks(""); }},
      {"fields_unchanged[0]: holds a control character", [](auto& s) { s.add_fields_unchanged("a\x1b"); }},
      {"fields_unchanged[0]: has 257 bytes, at most 256 are possible",
       [](auto& s) { s.add_fields_unchanged(std::string(257, 'f')); }},
      {"masks: has 257 names, at most 256 are possible",
       [](auto& s) {
         for (int i = 0; i < 257; ++i) s.add_masks("m");
       }},
      {"fields_unchanged[1]: is in masks too; a field either follows the image or stays as it is",
       [](auto& s) {
         s.add_masks("m");
         s.add_fields_unchanged("d");
         s.add_fields_unchanged("m");
       }},
      {"slots: 2 is not within 3 to 64", [](auto& s) { s.set_slots(2); }},
      {"slots: 65 is not within 3 to 64", [](auto& s) { s.set_slots(65); }},
      {"fields[2]: is listed twice",
       [](auto& s) {
         for (const char* const name : {"x", "y", "x"}) s.add_fields(name);
       }},
      {"fields: has 257 names, at most 256 are possible",
       [](auto& s) {
         for (int i = 0; i < 257; ++i) s.add_fields(std::to_string(i));
       }},
      {"fields[0]: holds a control character", [](auto& s) { s.add_fields("a\nb"); }},
      {"group: is for the sharings broadcast and queue only", [](auto& s) { s.set_group("g"); }},
      {"group_size: is for the sharings broadcast and queue only", [](auto& s) { s.set_group_size(2); }},
      {"group: must name the group that shares the feed",
       [](auto& s) { s.set_sharing(v1::FeedSpec::BROADCAST); }},
      {"group: holds a control character",
       [](auto& s) {
         s.set_sharing(v1::FeedSpec::QUEUE);
         s.set_group("a\x1b[2J");
       }},
      {"transforms[0]: names no operation that this daemon knows", [](auto& s) { AddTransform(s); }},
      {"transforms: has 65 entries, at most 64 are possible",
       [](auto& s) {
         for (int i = 0; i < 65; ++i) AddTransform(s).mutable_resize()->add_size(1);
       }},
      {"transforms[0] resize.size: has 0 values; give one, or height and width",
       [](auto& s) { AddTransform(s).mutable_resize(); }},
      {"transforms[0] resize.max_size: 65501 is not within 1 to 65500",
       [](auto& s) { AddTransform(s).mutable_resize()->set_max_size(65501); }},
      {"transforms[0] resize.max_size: 5 is not above size, 5",
       [](auto& s) {
         auto& resize = *AddTransform(s).mutable_resize();
         resize.add_size(5);
         resize.set_max_size(5);
       }},
      {"transforms[0] resize.max_size: goes with the length of the shorter side, not with height and width",
       [](auto& s) {
         auto& resize = *AddTransform(s).mutable_resize();
         resize.add_size(5);
         resize.add_size(5);
         resize.set_max_size(9);
       }},
      {"transforms[0] center_crop.size: 0 is not within 1 to 65500",
       [](auto& s) { AddTransform(s).mutable_center_crop()->add_size(0); }},
      {"transforms[0] center_crop.size: 65501 is not within 1 to 65500",
       [](auto& s) { AddTransform(s).mutable_center_crop()->add_size(65501); }},
      {"transforms[0] random_resized_crop.scale: has 1 values; give the least and the greatest",
       [](auto& s) {
         auto& crop = *AddTransform(s).mutable_random_resized_crop();
         crop.add_size(1);
         crop.add_scale(1);
       }},
      {"transforms[0] random_resized_crop.ratio: must be two finite numbers, 0 < least <= greatest",
       [](auto& s) {
         auto& crop = *AddTransform(s).mutable_random_resized_crop();
         crop.add_size(1);
         crop.add_ratio(1);
         crop.add_ratio(kNan);
       }},
      {"transforms[0] random_horizontal_flip.p: nan is not within 0 to 1",
       [](auto& s) { AddTransform(s).mutable_random_horizontal_flip()->set_p(kNan); }},
      {"transforms[0] normalize.mean: has 0 values; give one, or one a channel\n"
       "transforms[0] normalize.std: holds 0; it must be above 0, also as float32",
       [](auto& s) { AddTransform(s).mutable_normalize()->add_std(0); }},
      {"transforms[0] normalize.mean: holds a value that is not finite, also as float32",
       [](auto& s) {
         auto& normalize = *AddTransform(s).mutable_normalize();
         normalize.add_mean(kInf);
         normalize.add_std(1);
       }},
      {"transforms[0] to_dtype.dtype: is none of uint8, float32, float16, bfloat16",
       [](auto& s) { AddTransform(s).mutable_to_dtype()->set_dtype("int64"); }},
  };
  return faults;
}

TEST_P(ConvertFaultTest, HasItsText) {
  const Fault& fault = AllFaults().at(static_cast<size_t>(GetParam()));
  v1::FeedSpec spec = ValidSpec();
  fault.make(spec);
  const Result<FeedSpec> result = Read(spec);
  ASSERT_FALSE(result.ok()) << fault.text;
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(result.status().message(), fault.text);
}
INSTANTIATE_TEST_SUITE_P(All, ConvertFaultTest, ::testing::Range(0, static_cast<int>(AllFaults().size())));

}  // namespace
}  // namespace pinfeed
