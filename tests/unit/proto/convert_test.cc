// SPDX-License-Identifier: Apache-2.0
#include "proto/convert.h"

#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/util/json_util.h>

#include "common/spec/differing_fields.h"
#include "tests/unit/proto/read_spec.h"

namespace pinfeed {
namespace {

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
  "masks": ["m", "n"], "fields_unchanged": ["d"], "decode": "DECODE_AUTO", "gpu_share": 123,
  "sharing": "QUEUE", "group": "g", "group_size": 3, "backend": "HOST",
  "ignore_exif_orientation": true, "fields": ["y", "x"]})";

TEST(ConvertTest, EveryFieldOfASpecIsRead) {
  FeedSpec spec;
  spec.dataset.path = "/d";
  spec.dataset.format = "tokens";
  spec.dataset.options = {
      {"sequence_length", Number(9)}, {"stride", Number(3)}, {"token_dtype", Word("uint32")}};
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
  spec.decode = Decode::kAuto;
  spec.gpu_share = 123;
  Faults none;
  TransformChain::Parse(spec.transforms, none);  // adds the defaults, as is done with what is read
  v1::FeedSpec message;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(kFullSpec, &message).ok());
  ASSERT_OK_AND_ASSIGN(const FeedSpec read, Read(message));
  EXPECT_EQ(read, spec) << DifferingFields(read, spec);
}

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
               "order: 9 is not a known value\n"
               "batch_size: must be at least 1\n"
               "dataset.token_dtype: is neither uint16 nor uint32\n"
               "transforms[0] center_crop.size: has 0 values; give one, or height and width\n"
               "transforms[1] random_resized_crop.scale: 1.5 is above 1, the whole area\n"
               "transforms[2] normalize.std: holds -1; it must be above 0, also as float32\n"
               "transforms[3] resize: comes after normalize or to_dtype, but works on uint8 pixels; move it "
               "before them"));
}

// What a newer client knows, an older daemon must not overlook.
TEST(ConvertTest, UnknownFieldsOfASpecAreRefusedWhereverTheyAre) {
  constexpr char kReason[] =
      "has a field (number 999) that this daemon does not know: the client is newer; install the same "
      "pinfeed "
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
  EXPECT_THAT(Read(spec), StatusIs(Code::kInvalidArgument,
                                   std::string("spec: ") + kReason + "\ntransforms[0]: " + kReason +
                                       "\ntransforms[0]: names no operation that this daemon knows"));
}

TEST(ConvertTest, ATokenDtypeThatIsSaidIsNotTheSameAsNone) {
  v1::FeedSpec spec = ValidSpec();
  ASSERT_OK_AND_ASSIGN(const FeedSpec unset, Read(spec));
  EXPECT_FALSE(unset.dataset.options.contains("token_dtype"));
  spec.mutable_dataset()->set_token_dtype("uint16");
  ASSERT_OK_AND_ASSIGN(const FeedSpec said, Read(spec));
  EXPECT_EQ(said.dataset.options.at("token_dtype"), Word("uint16"));
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

TEST(ConvertTest, DifferencesAreNamedWithTheirShortValues) {
  FeedSpec there;
  FeedSpec here;
  here.batch_size = 3;
  here.transforms = {Resize{1, 1}};
  here.backend = Backend::kHost;
  here.valid = true;
  here.masks = {"m"};
  here.fields_unchanged = {"d"};
  here.dataset.path = "/d";
  EXPECT_EQ(
      DifferingFields(there, here),
      "dataset.path ('' there, '/d' here), batch_size (0 there, 3 here), transforms, valid (false there, "
      "true here), masks, fields_unchanged, backend (auto there, host here)");
}

TEST(ConvertTest, DifferencesWithinADatasetAndABatcherAreNamed) {
  FeedSpec there;
  FeedSpec here;
  there.dataset.produced = ProducedDataset{"A", 5, {{"batch", DType::kUint8, {100}}}, "seed=1", 0, 0};
  EXPECT_EQ(DifferingFields(there, here), "dataset.produced (true there, false here)");
  here.dataset.produced = ProducedDataset{"A", 5, {{"batch", DType::kUint8, {200}}}, "seed='2'", 0, 9};
  EXPECT_EQ(DifferingFields(there, here),
            "bytes of dataset.produced.fields (100 there, 200 here), dataset.produced.fingerprint ('seed=1' "
            "there, 'seed=\\'2\\'' here), dataset.produced.task_timeout_ms (0 there, 9 here)");
  here.dataset.produced = there.dataset.produced;
  here.dataset.produced->fields[0].name = "other";
  EXPECT_EQ(DifferingFields(there, here), "dataset.produced.fields");
  here = there;
  there.batcher.emplace().max_delay_us = 5000;
  EXPECT_EQ(DifferingFields(there, here), "batcher (true there, false here)");
  here.batcher = there.batcher;
  here.batcher->max_delay_us = 1000;
  here.batcher->redeal = true;
  EXPECT_EQ(DifferingFields(there, here),
            "batcher.max_delay_us (5000 there, 1000 here), batcher.redeal (false there, true here)");
}

}  // namespace
}  // namespace pinfeed
