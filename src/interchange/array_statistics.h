// SPDX-License-Identifier: Apache-2.0
// The statistics of an array that lies in memory, for what is imported. The probe has its own, fast
// ones, which take aligned memory alone and live beneath another layer; a test holds both together.
#pragma once
#include <cstdint>
#include <string_view>

#include "format/records.gen.h"

namespace telltale::interchange {

/// Fills the columns from count to prod of `row` (and `more`) from `content`, elements of a type as
/// the table tensors names it (F32, ...), which need not be aligned. Complex ones count by their
/// absolute value. False where the type is unknown or the content no whole number of elements.
bool FillStatistics(std::string_view dtype, std::string_view content, format::StatisticRow* row);

/// The first element as a number; of complex ones the absolute value.
bool FirstElement(std::string_view dtype, std::string_view content, double* value);

}  // namespace telltale::interchange
