// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/npy_header.h"

#include "tests/support/testing.h"
#include "tests/unit/dataset/npy_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace pinfeed {
namespace {

Result<NpyHeader> Parse(const std::string& bytes) {
  return ParseNpyHeader(std::as_bytes(std::span(bytes)));
}
Result<NpyHeader> ParseDictionary(const std::string& dictionary) {
  return Parse(NpyHeaderBytes(dictionary));
}

TEST(NpyHeaderTest, ReadsWhatNumpyWrites) {
  // np.save of np.zeros((3, 4), "<f4"), numpy 1.26.
  const std::string bytes = "\x93NUMPY\x01" + std::string(1, '\0') + "v" + std::string(1, '\0') +
                            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }" +
                            std::string(58, ' ') + "\n";
  ASSERT_EQ(bytes.size(), 128U);
  ASSERT_OK_AND_ASSIGN(const NpyHeader header, Parse(bytes));
  EXPECT_EQ(header, (NpyHeader{DType::kFloat32, false, false, {3, 4}, 128, 48}));
}

TEST(NpyHeaderTest, ReadsOtherSpellings) {
  for (const char* dictionary :
       {"{'shape': (3, 4), 'fortran_order': False, 'descr': '<f4'}",
        "{\"descr\":\"<f4\",\"fortran_order\":False,\"shape\":(3,4)}",
        " \t{ 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 3L , 4L , ) , } \n\n",
        "{'descr': '<f4',\n 'fortran_order': False,\n 'shape': (3, 4)}\n"}) {
    SCOPED_TRACE(dictionary);
    ASSERT_OK_AND_ASSIGN(const NpyHeader header, ParseDictionary(dictionary));
    EXPECT_EQ(header.dtype, DType::kFloat32);
    EXPECT_EQ(header.shape, (std::vector<int64_t>{3, 4}));
  }
  ASSERT_OK_AND_ASSIGN(const NpyHeader fortran,
                       ParseDictionary("{'descr': '>c16', 'fortran_order': True, 'shape': (3, 4)}"));
  EXPECT_TRUE(fortran.fortran_order && fortran.big_endian);
  ASSERT_OK_AND_ASSIGN(const NpyHeader bytes,
                       ParseDictionary("{'descr': '>u1', 'fortran_order': True, 'shape': (3,)}"));
  EXPECT_FALSE(bytes.fortran_order || bytes.big_endian);
}

TEST(NpyHeaderTest, ReadsOtherNamesOfElementTypes) {
  for (const char* descr : {"<f4", "=f4", "|f4", "f4", "float32", "f", "|f"}) {
    ASSERT_OK_AND_ASSIGN(const NpyHeader header, Parse(NpyHeaderBytes(descr, "(2,)", false)));
    EXPECT_EQ(header.dtype, DType::kFloat32) << descr;
    EXPECT_FALSE(header.big_endian) << descr;
  }
  for (const char* descr : {"|b1", "|?", "?", "bool"})
    EXPECT_EQ(Parse(NpyHeaderBytes(descr, "(2,)", false))->dtype, DType::kBool) << descr;
  EXPECT_TRUE(Parse(NpyHeaderBytes(">h", "(2,)", false))->big_endian);
  EXPECT_OK(ParseDictionary("{u'descr': u'<f4', u'fortran_order': False, u'shape': (2L,)}"));
  EXPECT_THAT(Parse(NpyHeaderBytes("{'descr': '<f4', 'fortran_order': False, 'shape': (2L,)}", 3)),
              StatusIs(Code::kInvalidArgument, HasSubstr("','")));
}

TEST(NpyHeaderTest, RefusesOtherFiles) {
  EXPECT_THAT(Parse(""), StatusIs(Code::kInvalidArgument, HasSubstr("only 0 bytes")));
  EXPECT_THAT(Parse("PK\x03\x04 zipped arrays"),
              StatusIs(Code::kInvalidArgument, HasSubstr("does not start with")));
  EXPECT_THAT(Parse(NpyHeaderBytes("{}", 4)),
              StatusIs(Code::kInvalidArgument, HasSubstr("version 4.0 is unknown")));
  std::string minor = NpyHeaderBytes("{}", 1);
  minor[7] = 1;
  EXPECT_THAT(Parse(minor), StatusIs(Code::kInvalidArgument, HasSubstr("version 1.1 is unknown")));
  EXPECT_THAT(Parse(NpyHeaderBytes("", 2).substr(0, 11)),
              StatusIs(Code::kInvalidArgument, HasSubstr("header's length")));
  EXPECT_THAT(Parse(NpyHeaderBytes("{}", 1).substr(0, 11)),
              StatusIs(Code::kDataLoss, HasSubstr("12 bytes but the file has 11")));
  std::string endless = NpyHeaderBytes("{}", 2);
  endless[11] = '\x7f';
  EXPECT_THAT(Parse(endless), StatusIs(Code::kInvalidArgument, HasSubstr("at most 1048576")));
}

TEST(NpyHeaderTest, RefusesElementsThatAreNoNumbers) {
  const auto parse = [](const std::string& descr) { return Parse(NpyHeaderBytes(descr, "(2,)", false)); };
  EXPECT_THAT(parse("|O"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("'|O'"), HasSubstr("Python objects"))));
  EXPECT_THAT(parse("<U10"), StatusIs(Code::kInvalidArgument, HasSubstr("text")));
  EXPECT_THAT(parse("|S3"), StatusIs(Code::kInvalidArgument, HasSubstr("text")));
  EXPECT_THAT(parse("<V2"), StatusIs(Code::kInvalidArgument, HasSubstr("raw records")));
  EXPECT_THAT(parse("<M8[ns]"), StatusIs(Code::kInvalidArgument, HasSubstr("dates")));
  EXPECT_THAT(parse("<f16"), StatusIs(Code::kInvalidArgument, HasSubstr("'<f16' is not supported")));
  EXPECT_THAT(parse("<c32"), StatusIs(Code::kInvalidArgument, HasSubstr("not supported")));
  EXPECT_THAT(parse(""), StatusIs(Code::kInvalidArgument, HasSubstr("not supported")));
  EXPECT_THAT(parse("<f44"), StatusIs(Code::kInvalidArgument, HasSubstr("not supported")));
  EXPECT_THAT(parse("<float32"), StatusIs(Code::kInvalidArgument, HasSubstr("not supported")));
  EXPECT_THAT(ParseDictionary("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}"),
              StatusIs(Code::kInvalidArgument, HasSubstr("structured")));
}

TEST(NpyHeaderTest, RefusesShapesWithoutElementsOrWithTooMany) {
  const auto parse = [](const std::string& shape) { return Parse(NpyHeaderBytes("<f4", shape, false)); };
  EXPECT_THAT(parse("(0, 3)"), StatusIs(Code::kInvalidArgument, HasSubstr("dimension 0 of its shape is 0")));
  EXPECT_THAT(parse("(3, 0)"), StatusIs(Code::kInvalidArgument, HasSubstr("dimension 1 of its shape is 0")));
  EXPECT_THAT(parse("(-1,)"), StatusIs(Code::kInvalidArgument, HasSubstr("an integer >= 0")));
  EXPECT_THAT(parse("(9223372036854775808,)"), StatusIs(Code::kInvalidArgument, HasSubstr("below 2^63")));
  EXPECT_THAT(parse("(9223372036854775807,)"),
              StatusIs(Code::kInvalidArgument, HasSubstr("exceeds 63 bits")));
  EXPECT_THAT(parse("(4294967296, 4294967296, 4)"),
              StatusIs(Code::kInvalidArgument, HasSubstr("exceeds 63 bits")));
  std::string deep;
  for (size_t i = 0; i < kMaxNpyRank; ++i) deep += "1,";
  EXPECT_OK(parse("(" + deep + ")"));
  EXPECT_THAT(parse("(" + deep + "1)"), StatusIs(Code::kInvalidArgument, HasSubstr("64 dimensions")));
}

TEST(NpyHeaderTest, RefusesMalformedDictionariesWithTheirPosition) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}";
  ASSERT_OK(ParseDictionary(good));
  EXPECT_THAT(
      ParseDictionary(good + "x"),
      StatusIs(Code::kInvalidArgument, HasSubstr("expected the end at byte " + std::to_string(good.size()))));
  for (const char* bad : {"",
                          "{",
                          "{}",
                          "[]",
                          "{'descr': '<f4', 'fortran_order': False}",
                          "{'descr': '<f4', 'shape': (2,)}",
                          "{'fortran_order': False, 'shape': (2,)}",
                          "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'extra': 1}",
                          "{'descr' '<f4', 'fortran_order': False, 'shape': (2,)}",
                          "{'descr': '<f4' 'fortran_order': False, 'shape': (2,)}",
                          "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
                          "{'descr': '<f4', 'fortran_order': False, 'shape': 2}",
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (2)}",
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}",
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (2,,)}",
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (2,",
                          "{'descr': '<f4\", 'fortran_order': False, 'shape': (2,)}",
                          "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (2,)}",
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,)}",
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (02,)}",
                          "{b'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
                          "{,}"}) {
    SCOPED_TRACE(bad);
    EXPECT_THAT(ParseDictionary(bad), StatusIs(Code::kInvalidArgument, HasSubstr("malformed .npy header")));
  }
}

TEST(NpyHeaderTest, KeepsItsPromisesOnEveryMutationOfTheSeeds) {
  const auto run = [](const std::string& bytes) {
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
  };
  const std::vector<std::string> seeds = {NpyHeaderBytes("<f4", "(3, 4)", false),
                                          NpyHeaderBytes(">c16", "(10L,)", true, 2),
                                          NpyHeaderBytes("|b1", "(1, 2, 3, 4, 5)", true, 3)};
  for (const std::string& seed : seeds) {
    for (size_t i = 0; i <= seed.size(); ++i) run(seed.substr(0, i));
    for (size_t i = 0; i < seed.size(); ++i) {
      for (int value = 0; value < 256; ++value) {
        std::string mutated = seed;
        mutated[i] = static_cast<char>(value);
        run(mutated);
      }
      run(seed.substr(0, i) + seed.substr(i + 1));
      run(seed.substr(0, i) + seed[i] + seed.substr(i));
    }
  }
}

}  // namespace
}  // namespace pinfeed
