// Kernels for operations that many elements have a part in.

#include "common.h"

#include <ATen/WrapDimUtilsMulti.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

namespace stepmesh {
namespace {

using at::Scalar;
using at::Tensor;

// PyTorch answers bytes with bytes.
Tensor as_truth_of(const Tensor& truth, const Tensor& self) {
  return self.scalar_type() == at::kByte ? truth.to(at::kByte) : truth;
}

Tensor any(const Tensor& self, int64_t dim, bool keepdim) {
  if (self.numel() == 0) return eagerly<ATEN_OP2(any, dim)>(self, dim, keepdim);
  return as_truth_of(std::get<0>(at::max(at::ne(self, 0), dim, keepdim)), self);
}

Tensor all(const Tensor& self, int64_t dim, bool keepdim) {
  if (self.numel() == 0) return eagerly<ATEN_OP2(all, dim)>(self, dim, keepdim);
  const Tensor has_zero = std::get<0>(at::max(at::eq(self, 0), dim, keepdim));
  return as_truth_of(at::logical_not(has_zero), self);
}

// So that the least is the greatest, without a number that has no mirror image.
Tensor mirrored(const Tensor& x) {
  switch (x.scalar_type()) {
    case at::kBool:
      return at::logical_not(x);
    case at::kByte:
      return at::rsub(x, 255);
    default:
      return x.is_floating_point() ? at::neg(x) : at::rsub(x, -1);
  }
}

std::tuple<Tensor, Tensor> min_dim(const Tensor& self, int64_t dim, bool keepdim) {
  const auto [greatest, index] = at::max(mirrored(self), dim, keepdim);
  return {mirrored(greatest), index};
}

Tensor amax(const Tensor& self, at::IntArrayRef dims, bool keepdim) {
  if (self.numel() == 0) return eagerly<ATEN_OP(amax)>(self, dims, keepdim);
  const auto reduced = at::dim_list_to_bitset(dims, self.dim());
  Tensor result = self;
  // From the last on, so that those before it keep their places.
  for (int64_t dim = self.dim() - 1; dim >= 0; --dim) {
    if (dims.empty() || reduced[dim]) result = std::get<0>(at::max(result, dim, keepdim));
  }
  return result;
}

Tensor amin(const Tensor& self, at::IntArrayRef dims, bool keepdim) {
  if (self.numel() == 0) return eagerly<ATEN_OP(amin)>(self, dims, keepdim);
  return mirrored(at::amax(mirrored(self), dims, keepdim));
}

Tensor argmax(const Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  if (self.numel() == 0) return eagerly<ATEN_OP(argmax)>(self, dim, keepdim);
  if (dim.has_value()) return std::get<1>(at::max(self, *dim, keepdim));
  const Tensor index = std::get<1>(at::max(at::view_copy(self, {-1}), 0, false));
  return keepdim ? at::view_copy(index, std::vector<int64_t>(self.dim(), 1)) : index;
}

Tensor argmin(const Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  if (self.numel() == 0) return eagerly<ATEN_OP(argmin)>(self, dim, keepdim);
  return at::argmax(mirrored(self), dim, keepdim);
}

// Every dimension, where none is named.
std::vector<int64_t> dims_of(const Tensor& self, at::OptionalIntArrayRef dims) {
  if (dims.has_value() && !dims->empty()) return dims->vec();
  std::vector<int64_t> all(self.dim());
  for (int64_t dim = 0; dim < self.dim(); ++dim) all[dim] = dim;
  return all;
}

std::tuple<Tensor, Tensor> var_mean(const Tensor& self, at::OptionalIntArrayRef dims,
                                    const std::optional<Scalar>& correction, bool keepdim) {
  const auto over = dims_of(self, dims);
  const Tensor x = wide(self);
  double count = 1;
  for (const int64_t dim : over) count *= self.dim() == 0 ? 1 : self.size(dim);
  const double divisor = std::max(count - correction.value_or(1).toDouble(), 0.0);
  const Tensor mean = at::mean(x, over, /*keepdim=*/true);
  const Tensor centred = x - mean;
  const Tensor variance = at::sum(centred * centred, over, keepdim) / divisor;
  const Tensor shaped = keepdim ? mean : at::mean(x, over, /*keepdim=*/false);
  return {variance.to(self.scalar_type()), shaped.to(self.scalar_type())};
}

Tensor var(const Tensor& self, at::OptionalIntArrayRef dims, const std::optional<Scalar>& correction,
           bool keepdim) {
  return std::get<0>(at::var_mean(wide(self), dims, correction, keepdim)).to(self.scalar_type());
}

Tensor std_(const Tensor& self, at::OptionalIntArrayRef dims, const std::optional<Scalar>& correction,
            bool keepdim) {
  return at::sqrt(at::var(wide(self), dims, correction, keepdim)).to(self.scalar_type());
}

// Of the norms those that need no powers but squares; none for another.
std::optional<Tensor> norm_of(const Tensor& x, double p, const std::vector<int64_t>& dims,
                              bool keepdim) {
  if (!x.is_floating_point() || x.numel() == 0) return std::nullopt;
  const Tensor computed = wide(x);
  if (p == 2) return at::sqrt(at::sum(computed * computed, dims, keepdim));
  if (p == 1) return at::sum(at::abs(computed), dims, keepdim);
  if (p == std::numeric_limits<double>::infinity()) return at::amax(at::abs(computed), dims, keepdim);
  return std::nullopt;
}

Tensor norm(const Tensor& self, const std::optional<Scalar>& p, at::IntArrayRef dims, bool keepdim) {
  const auto found = norm_of(self, p.value_or(2).toDouble(), dims_of(self, dims), keepdim);
  return found.has_value() ? found->to(self.scalar_type())
                           : eagerly<ATEN_OP2(norm, ScalarOpt_dim)>(self, p, dims, keepdim);
}

Tensor vector_norm(const Tensor& self, const Scalar& p, at::OptionalIntArrayRef dims, bool keepdim,
                   std::optional<at::ScalarType> dtype) {
  const auto wanted = dtype.value_or(self.scalar_type());
  const auto found = norm_of(self.to(wanted), p.toDouble(), dims_of(self, dims), keepdim);
  return found.has_value()
             ? found->to(wanted)
             : eagerly<ATEN_OP(linalg_vector_norm)>(self, p, dims, keepdim, dtype);
}

Tensor logsumexp(const Tensor& self, at::IntArrayRef dims, bool keepdim) {
  if (!self.is_floating_point() || self.numel() == 0) {
    return eagerly<ATEN_OP(logsumexp)>(self, dims, keepdim);
  }
  const Tensor x = wide(self);
  const auto over = dims_of(self, dims);
  const Tensor greatest = at::amax(x, over, /*keepdim=*/true);
  // What is infinite is not taken away: it would be infinity less infinity.
  const auto infinity = std::numeric_limits<double>::infinity();
  const Tensor shift = at::masked_fill(greatest, at::eq(at::abs(greatest), infinity), 0);
  const Tensor sum = at::log(at::sum(at::exp(x - shift), over, keepdim));
  const Tensor back = keepdim ? shift : at::view_copy(shift, sum.sizes());
  return (sum + back).to(self.scalar_type());
}

Tensor dot(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1 && self.numel() == other.numel(),
              "dot: vectors of one length, not ", self.sizes(), " and ", other.sizes());
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "dot: vectors of one type, not ",
              self.scalar_type(), " and ", other.scalar_type());
  return at::sum(wide(self) * wide(other)).to(self.scalar_type());
}

Tensor addmv(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
             const Scalar& alpha) {
  const Tensor addend = at::unsqueeze_copy(at::expand_copy(self, {matrix.size(0)}), 1);
  const Tensor column = at::unsqueeze_copy(vector, 1);
  return at::view_copy(at::addmm(addend, matrix, column, beta, alpha), {-1});
}

}  // namespace

void add_reductions(torch::Library& library) {
  library.impl("any.dim", any);
  library.impl("all.dim", all);
  library.impl("min.dim", min_dim);
  library.impl("amax", amax);
  library.impl("amin", amin);
  library.impl("argmax", argmax);
  library.impl("argmin", argmin);
  library.impl("var.correction", var);
  library.impl("var_mean.correction", var_mean);
  library.impl("std.correction", std_);
  library.impl("norm.ScalarOpt_dim", norm);
  library.impl("linalg_vector_norm", vector_norm);
  library.impl("logsumexp", logsumexp);
  library.impl("dot", dot);
  library.impl("addmv", addmv);
}

}  // namespace stepmesh
