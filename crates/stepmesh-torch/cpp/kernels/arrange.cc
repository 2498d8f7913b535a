// Kernels for elements by indices, and for views with several results.

#include "common.h"

#include <ATen/WrapDimUtils.h>
#include <torch/csrc/lazy/core/ir_builder.h>
#include <torch/csrc/lazy/core/tensor.h>
#include <torch/csrc/lazy/ts_backend/ts_node.h>
#include <torch/csrc/lazy/ts_backend/ts_node_lowering.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace stepmesh {
namespace {

using at::Scalar;
using at::Tensor;
using torch::lazy::LazyTensor;
using torch::lazy::Shape;
using torch::lazy::Value;

using Indices = c10::List<OptionalTensor>;

// --- elements by indices ---

// What indices name, as slices of one dimension: the dimensions that have an index are made one.
struct Slices {
  int64_t dim;
  // The shape of the indexed tensor with those dimensions as one.
  std::vector<int64_t> merged;
  // Numbers of slices, a vector.
  Tensor numbers;
  // The shape of what is named.
  std::vector<int64_t> named;
};

// Nothing for indices of bool, and for those that do not stand side by side.
std::optional<Slices> slices_of(const Tensor& self, const Indices& indices) {
  int64_t first = 0, end = 0;
  std::vector<int64_t> shape;
  for (size_t i = 0; i < indices.size(); ++i) {
    const OptionalTensor index = indices.get(i);
    if (!is_given(index)) continue;
    const auto dtype = index->scalar_type();
    const auto dim = static_cast<int64_t>(i);
    if (end == 0) first = end = dim;
    if (dim != end || dim >= self.dim() || (dtype != at::kLong && dtype != at::kInt)) return std::nullopt;
    end = dim + 1;
    shape = at::infer_size(shape, index->sizes());
  }
  if (end == 0) return std::nullopt;
  Tensor numbers;
  int64_t count = 1;
  for (int64_t dim = first; dim < end; ++dim) {
    const Tensor index = indices.get(dim)->to(self.device()).to(at::kLong);
    // An index may count from the end.
    const Tensor from_start = index + at::lt(index, 0).to(at::kLong) * self.size(dim);
    numbers = numbers.defined() ? numbers * self.size(dim) + from_start : from_start;
    count *= self.size(dim);
  }
  numbers = at::expand_copy(numbers, shape);
  const auto replaced = [&](at::IntArrayRef by) {
    auto sizes = self.sizes().vec();
    sizes.erase(sizes.begin() + first, sizes.begin() + end);
    sizes.insert(sizes.begin() + first, by.begin(), by.end());
    return sizes;
  };
  return Slices{first, replaced({count}), at::view_copy(numbers, {numbers.numel()}), replaced(shape)};
}

Tensor index(const Tensor& self, const Indices& indices) {
  const auto slices = slices_of(self, indices);
  if (!slices.has_value()) return eagerly<ATEN_OP2(index, Tensor)>(self, indices);
  const Tensor merged = at::view_copy(self, slices->merged);
  return at::view_copy(at::index_select(merged, slices->dim, slices->numbers), slices->named);
}

// `index_add`, for which the core has no node. It could be a `scatter_add`, which needs an index for
// each element where this one has one for a row.
class IndexAdd : public torch::lazy::TsNode {
 public:
  IndexAdd(const Value& self, int64_t dim, const Value& index, const Value& source, Shape shape)
      : TsNode(torch::lazy::OpKind(at::aten::index_add), {self, index, source}, {std::move(shape)},
               /*num_outputs=*/1, torch::lazy::MHash(dim)),
        dim_(dim) {}

  torch::lazy::TSOpVector Lower(std::shared_ptr<torch::jit::GraphFunction> function,
                                torch::lazy::TSLoweringContext* context) const override {
    std::vector<torch::jit::NamedValue> arguments;
    arguments.emplace_back(context->GetOutputOp(operand(0)));
    arguments.emplace_back("dim", dim_);
    arguments.emplace_back(context->GetOutputOp(operand(1)));
    arguments.emplace_back(context->GetOutputOp(operand(2)));
    return torch::lazy::LowerTSBuiltin(function, op().op, arguments);
  }

 private:
  int64_t dim_;
};

Tensor index_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                 const Scalar& alpha) {
  if (self.dim() == 0) return eagerly<ATEN_OP(index_add)>(self, dim, index, source, alpha);
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  auto sizes = self.sizes().vec();
  sizes[wrapped] = index.numel();
  TORCH_CHECK(index.dim() <= 1 && source.sizes() == sizes && source.scalar_type() == self.scalar_type(),
              "index_add: the source is ", source.scalar_type(), source.sizes(), ", not ",
              self.scalar_type(), sizes);
  const Tensor addend = alpha.equal(1) ? source : source * alpha;
  const auto value = [](const Tensor& x) { return torch::lazy::GetLtcTensor(x)->GetIrValue(); };
  auto node = torch::lazy::MakeNode<IndexAdd>(value(self), wrapped, value(index), value(addend),
                                              Shape(self.scalar_type(), self.sizes()));
  const auto device = torch::lazy::GetLtcTensor(self)->GetDevice();
  return torch::lazy::CreateAtenFromLtcTensor(LazyTensor::Create(Value(std::move(node), 0), device));
}

// Sums at indices: the gradient of `index`.
Tensor& index_put_(Tensor& self, const Indices& indices, const Tensor& values, bool accumulate,
                   bool unsafe) {
  const auto slices = slices_of(self, indices);
  if (!slices.has_value() || !accumulate) {
    return eagerly<ATEN_OP(_index_put_impl_)>(self, indices, values, accumulate, unsafe);
  }
  auto sizes = slices->merged;
  sizes[slices->dim] = slices->numbers.numel();
  const Tensor spread = at::expand_copy(values.to(self.options()), slices->named);
  const Tensor merged = at::view_copy(self, slices->merged);
  const Tensor sum =
      at::index_add(merged, slices->dim, slices->numbers, at::view_copy(spread, sizes));
  write(at::view_copy(sum, self.sizes()), self);
  return self;
}

// Where an index of `scatter` points to.
Tensor hit_by(const Tensor& self, int64_t dim, const Tensor& index) {
  const auto options = self.options().dtype(at::kInt);
  const Tensor hits = at::scatter_add(at::zeros(self.sizes(), options), dim, index,
                                      at::ones(index.sizes(), options));
  return at::gt(hits, 0);
}

Tensor scatter_value(const Tensor& self, int64_t dim, const Tensor& index, const Scalar& value) {
  return at::masked_fill(self, hit_by(self, dim, index), value);
}

// Where no two elements can go to one place, a sum is what is asked for.
Tensor scatter(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  if (self.dim() == 0 || index.dim() != self.dim() || index.size(dim) != 1) {
    return eagerly<ATEN_OP2(scatter, src)>(self, dim, index, source);
  }
  const Tensor placed = at::scatter_add(at::zeros(self.sizes(), self.options()), dim, index, source);
  return at::where(hit_by(self, dim, index), placed, self);
}

// --- views with several results ---

// The parts of a dimension. What the core's fallback gives for lists of tensors lies on the CPU, where
// the next operation fails.
std::vector<Tensor> split_with_sizes_copy(const Tensor& self, c10::SymIntArrayRef sizes, int64_t dim) {
  std::vector<Tensor> parts;
  c10::SymInt start = 0;
  for (const c10::SymInt& size : sizes) {
    parts.push_back(at::slice_copy_symint(self, dim, start, start + size, 1));
    start += size;
  }
  TORCH_CHECK(start == self.sym_size(dim), "parts of ", start, " in all, of a dimension of ",
              self.sym_size(dim));
  return parts;
}

std::vector<Tensor> split_copy(const Tensor& self, c10::SymInt size, int64_t dim) {
  const c10::SymInt extent = self.sym_size(dim);
  TORCH_CHECK(size > 0 || (size == 0 && extent == 0), "parts of ", size, " of a dimension of ", extent);
  std::vector<Tensor> parts;
  c10::SymInt start = 0;
  do {
    const c10::SymInt end = std::min(start + size, extent);
    parts.push_back(at::slice_copy_symint(self, dim, start, end, 1));
    start = end;
  } while (start < extent);
  return parts;
}

std::vector<Tensor> unbind_copy(const Tensor& self, int64_t dim) {
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < self.size(dim); ++i) parts.push_back(at::select_copy(self, dim, i));
  return parts;
}

}  // namespace

void add_arrangements(torch::Library& library) {
  library.impl("index.Tensor", index);
  library.impl("index_add", index_add);
  library.impl("_index_put_impl_", index_put_);
  library.impl("scatter.value", scatter_value);
  library.impl("scatter.src", scatter);
  library.impl("split_copy.Tensor", split_copy);
  library.impl("split_with_sizes_copy", split_with_sizes_copy);
  library.impl("unbind_copy.int", unbind_copy);
}

}  // namespace stepmesh
