// SPDX-License-Identifier: Apache-2.0
#include "proto/convert.h"

#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/util/json_util.h>

#include <functional>
#include <limits>

#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"

namespace pinfeed {
namespace {

using ::testing::HasSubstr;

v1::FeedSpec ValidSpec() {
  v1::FeedSpec spec;
  spec.mutable_dataset()->set_path("/data/train");
  spec.set_batch_size(8);
  return spec;
}

Result<OpenFeedArguments> Read(const v1::OpenFeedRequest& request) {
  pinfeed::Faults faults;
  OpenFeedArguments arguments = FromProto(request, faults);
  TransformChain::Parse(arguments.spec.transforms, faults);
  RETURN_IF_ERROR(faults.ToStatus());
  return arguments;
}

// Of a request that is nothing but the spec.
Result<FeedSpec> Read(const v1::FeedSpec& spec) {
  v1::OpenFeedRequest request;
  *request.mutable_spec() = spec;
  ASSIGN_OR_RETURN(OpenFeedArguments arguments, Read(request));
  return std::move(arguments.spec);
}

TEST(ConvertTest, UnsetFieldsHaveTheirDocumentedDefaults) {
  ASSERT_OK_AND_ASSIGN(const FeedSpec spec, Read(ValidSpec()));
  FeedSpec expected;
  expected.dataset.path = "/data/train";
  expected.batch_size = 8;
  EXPECT_EQ(spec, expected);
  EXPECT_EQ(spec.world_size, 1U);
  EXPECT_EQ(spec.group_size, 1U);
  EXPECT_EQ(DifferingFields(spec, expected), "");
}

// Every field, in the JSON that users write.
constexpr char kFullSpec[] = R"({
  "dataset": {"path": "/d", "format": "tokens", "sequence_length": 9, "stride": 3, "token_dtype": "uint32"},
  "batch_size": 7, "order": "SHUFFLE", "seed": "18446744073709551615", "epochs": 2, "drop_last": true,
  "rank": 1, "world_size": 4,
  "transforms": [
    {"resize": {"size": [256]}},
    {"resize": {"size": [256], "max_size": 300}},
    {"resize": {"max_size": 300}},
    {"resize": {"size": [4, 5]}},
    {"center_crop": {"size": [224, 200]}},
    {"random_resized_crop": {"size": [2, 3], "scale": [0.5, 0.75], "ratio": [0.9, 1.1]}},
    {"random_horizontal_flip": {"p": 0}},
    {"normalize": {"mean": [0.5], "std": [0.1, 0.2, 0.3]}},
    {"to_dtype": {"dtype": "bfloat16", "scale": true}}],
  "image_layout": "HWC", "on_bad_sample": "ZERO", "slots": 64, "sample_ids": true, "valid": true,
  "masks": ["m", "n"], "fields_unchanged": ["d"],
  "sharing": "QUEUE", "group": "g", "group_size": 3, "backend": "HOST",
  "ignore_exif_orientation": true, "fields": ["y", "x"]})";

TEST(ConvertTest, EveryFieldOfASpecIsRead) {
  FeedSpec spec;
  spec.dataset.path = "/d";
  spec.dataset.format = "tokens";
  spec.dataset.sequence_length = 9;
  spec.dataset.stride = 3;
  spec.dataset.token_dtype = DType::kUint32;
  spec.batch_size = 7;
  spec.order = Order::kShuffle;
  spec.seed = UINT64_MAX;
  spec.epochs = 2;
  spec.drop_last = true;
  spec.rank = 1;
  spec.world_size = 4;
  spec.transforms = {Resize{0, 256},
                     Resize{0, 256, 300},
                     Resize{0, 0, 300},
                     Resize{4, 5},
                     CenterCrop{224, 200},
                     RandomResizedCrop{2, 3, 0.5, 0.75, 0.9, 1.1},
                     RandomHorizontalFlip{0},
                     Normalize{{0.5}, {0.1, 0.2, 0.3}},
                     ToDtype{DType::kBfloat16, true}};
  spec.image_layout = ImageLayout::kHwc;
  spec.on_bad_sample = OnBadSample::kZero;
  spec.slots = 64;
  spec.sample_ids = true;
  spec.valid = true;
  spec.masks = {"m", "n"};
  spec.fields_unchanged = {"d"};
  spec.sharing = Sharing::kQueue;
  spec.group = "g";
  spec.group_size = 3;
  spec.backend = Backend::kHost;
  spec.ignore_exif_orientation = true;
  spec.fields = {"y", "x"};
  pinfeed::Faults none;
  TransformChain::Parse(spec.transforms, none);  // adds the defaults, as is done with what is read
  v1::FeedSpec message;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(kFullSpec, &message).ok());
  ASSERT_OK_AND_ASSIGN(const FeedSpec read, Read(message));
  EXPECT_EQ(read, spec) << DifferingFields(read, spec);
}

struct Fault {
  const char* text;  // of the whole error
  std::function<void(v1::FeedSpec&)> make;
};

class ConvertFaultTest : public ::testing::TestWithParam<int> {};

v1::Transform& AddTransform(v1::FeedSpec& spec) {
  return *spec.add_transforms();
}
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

const std::vector<Fault>& Faults() {
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
      {"dataset.format: 'zip' is none of image_folder, npy, tokens",
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
      {"transforms[0] normalize.mean: holds a value that is not finite",
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
  const Fault& fault = Faults().at(static_cast<size_t>(GetParam()));
  v1::FeedSpec spec = ValidSpec();
  fault.make(spec);
  const Result<FeedSpec> result = Read(spec);
  ASSERT_FALSE(result.ok()) << fault.text;
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(result.status().message(), fault.text);
}
INSTANTIATE_TEST_SUITE_P(All, ConvertFaultTest, ::testing::Range(0, static_cast<int>(Faults().size())));

TEST(ConvertTest, OneErrorHoldsTheFaultsOfTheWholeRequest) {
  v1::OpenFeedRequest request;
  *request.mutable_spec() = ValidSpec();
  request.mutable_spec()->set_batch_size(0);
  request.mutable_cursor()->set_fingerprint("XYZ");
  request.set_client_name("a\nb");
  request.set_gpu_uuid(std::string(300, 'g'));
  EXPECT_THAT(Read(request), StatusIs(Code::kInvalidArgument,
                                           "batch_size: must be at least 1\n"
                                           "cursor.version: 0 is none of the versions 1 to 2 that this "
                                           "pinfeed reads; was the cursor made by a "
                                           "newer one?\n"
                                           "cursor.fingerprint: is not 16 hexadecimal digits\n"
                                           "gpu_uuid: has 300 bytes, at most 256 are possible\n"
                                           "client_name: holds a control character"));
  EXPECT_THAT(Read(v1::OpenFeedRequest()), StatusIs(Code::kInvalidArgument, "spec: is missing"));
}

// What no value can hold and what a value must not be: neither hides the other.
TEST(ConvertTest, OneErrorHoldsFaultsOfFormAndOfValue) {
  v1::FeedSpec spec = ValidSpec();
  spec.set_batch_size(0);
  spec.set_order(static_cast<v1::FeedSpec::Order>(9));
  spec.mutable_dataset()->set_token_dtype("int8");
  AddTransform(spec).mutable_center_crop();
  v1::RandomResizedCrop& crop = *AddTransform(spec).mutable_random_resized_crop();
  crop.add_size(4);
  crop.add_scale(0.5);
  crop.add_scale(1.5);
  v1::Normalize& normalize = *AddTransform(spec).mutable_normalize();
  normalize.add_mean(0);
  normalize.add_std(-1);
  AddTransform(spec).mutable_resize()->add_size(8);
  EXPECT_THAT(
      Read(spec),
      StatusIs(Code::kInvalidArgument,
               "dataset.token_dtype: is neither uint16 nor uint32\n"
               "order: 9 is not a known value\n"
               "batch_size: must be at least 1\n"
               "transforms[0] center_crop.size: has 0 values; give one, or height and width\n"
               "transforms[1] random_resized_crop.scale: 1.5 is above 1, the whole area\n"
               "transforms[2] normalize.std: holds -1; it must be above 0, also as float32\n"
               "transforms[3] resize: comes after normalize or to_dtype, but works on uint8 pixels; move it "
               "before them"));
}

// What a newer client knows, an older daemon must not overlook.
TEST(ConvertTest, UnknownFieldsOfASpecAreRefusedWhereverTheyAre) {
  constexpr char kReason[] =
      "has a field (number 999) that this daemon does not know: the client is newer; install the same pinfeed "
      "on both sides";
  const auto add = [](google::protobuf::Message* message) {
    message->GetReflection()->MutableUnknownFields(message)->AddVarint(999, 0);
  };
  v1::FeedSpec spec = ValidSpec();
  AddTransform(spec).mutable_center_crop()->add_size(4);
  add(spec.mutable_transforms(0)->mutable_center_crop());
  add(spec.mutable_dataset());
  EXPECT_THAT(Read(spec), StatusIs(Code::kInvalidArgument, std::string("dataset: ") + kReason + "\n" +
                                                               "transforms[0].center_crop: " + kReason));
  spec = ValidSpec();
  add(&spec);
  add(&AddTransform(spec));
  EXPECT_THAT(Read(spec),
              StatusIs(Code::kInvalidArgument,
                       std::string("spec: ") + kReason + "\ntransforms[0]: " + kReason +
                           "\ntransforms[0]: names no operation that this daemon knows"));
}

TEST(ConvertTest, ATokenDtypeThatIsSaidIsNotTheSameAsNone) {
  v1::FeedSpec spec = ValidSpec();
  ASSERT_OK_AND_ASSIGN(const FeedSpec unset, Read(spec));
  EXPECT_EQ(unset.dataset.token_dtype, std::nullopt);
  spec.mutable_dataset()->set_token_dtype("uint16");
  ASSERT_OK_AND_ASSIGN(const FeedSpec said, Read(spec));
  EXPECT_EQ(said.dataset.token_dtype, DType::kUint16);
}

TEST(ConvertTest, FailedBackendsAreTheTwoThatCanFailEachOnce) {
  v1::OpenFeedRequest request;
  *request.mutable_spec() = ValidSpec();
  v1::FailedBackend& first = *request.add_failed_backends();
  first.set_backend(v1::FeedSpec::VMM_FD);
  first.set_reason("no");
  v1::FailedBackend& second = *request.add_failed_backends();
  second.set_backend(v1::FeedSpec::CUDA_IPC);
  ASSERT_OK_AND_ASSIGN(const OpenFeedArguments arguments, Read(request));
  ASSERT_EQ(arguments.failed_backends.size(), 2U);
  EXPECT_EQ(arguments.failed_backends[0].backend, Backend::kVmmFd);
  EXPECT_EQ(arguments.failed_backends[0].reason, "no");
  EXPECT_EQ(arguments.failed_backends[1].backend, Backend::kCudaIpc);

  second.set_backend(v1::FeedSpec::VMM_FD);
  second.set_reason(std::string(513, 'x'));
  EXPECT_THAT(Read(request), StatusIs(Code::kInvalidArgument,
                                           "failed_backends.reason: has 513 bytes, at most 512 are possible\n"
                                           "failed_backends: names a backend twice"));
  second.set_backend(v1::FeedSpec::HOST);
  second.set_reason("a\nb");
  EXPECT_THAT(Read(request), StatusIs(Code::kInvalidArgument,
                                           "failed_backends: 2 is not a known value\n"
                                           "failed_backends.reason: holds a control character"));
  request.add_failed_backends();
  EXPECT_EQ(Read(request).status().code(), Code::kInvalidArgument);
}

TEST(ConvertTest, SessionToReplaceIsTakenAsItCame) {
  v1::OpenFeedRequest request;
  *request.mutable_spec() = ValidSpec();
  ASSERT_OK_AND_ASSIGN(const OpenFeedArguments none, Read(request));
  EXPECT_EQ(none.replaces_session, 0U);
  request.set_replaces_session(UINT64_MAX);
  ASSERT_OK_AND_ASSIGN(const OpenFeedArguments one, Read(request));
  EXPECT_EQ(one.replaces_session, UINT64_MAX);
}

TEST(ConvertTest, CursorComesBackAsItWent) {
  const Cursor cursor{"0123456789abcdef", UINT64_MAX, 5, 1ULL << 40, Order::kShuffle};
  ASSERT_OK_AND_ASSIGN(const Cursor back, FromProto(ToProto(cursor)));
  EXPECT_EQ(back, cursor);
}

TEST(ConvertTest, TensorPlaceIsCheckedAgainstItsOwnSize) {
  const TensorPlace place{{"x", DType::kFloat32, {2, 3}}, 512, 24};
  ASSERT_OK_AND_ASSIGN(const TensorPlace back, FromProto(ToProto(place)));
  EXPECT_EQ(back, place);
  v1::TensorPlace wrong = ToProto(place);
  wrong.set_sample_bytes(25);
  EXPECT_THAT(FromProto(wrong), StatusIs(Code::kInvalidArgument, HasSubstr("sample_bytes 25")));
  wrong = ToProto(place);
  wrong.set_dtype(static_cast<v1::DType>(16));
  EXPECT_THAT(FromProto(wrong), StatusIs(Code::kInvalidArgument, HasSubstr("dtype 16")));
  wrong = ToProto(place);
  wrong.set_shape(0, -1);
  EXPECT_THAT(FromProto(wrong), StatusIs(Code::kInvalidArgument));
}

TEST(ConvertTest, DifferencesAreNamed) {
  FeedSpec a;
  FeedSpec b;
  b.batch_size = 3;
  b.transforms = {Resize{1, 1}};
  b.backend = Backend::kHost;
  b.valid = true;
  b.masks = {"m"};
  b.fields_unchanged = {"d"};
  EXPECT_EQ(DifferingFields(a, b), "batch_size, transforms, valid, masks, fields_unchanged, backend");
}

}  // namespace
}  // namespace pinfeed
