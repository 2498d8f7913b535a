// Kernels for operations on each element.

#include "common.h"

#include <ATen/ExpandUtils.h>
#include <torch/csrc/lazy/core/ir_builder.h>
#include <torch/csrc/lazy/core/tensor.h>
#include <torch/csrc/lazy/ts_backend/ts_node.h>
#include <torch/csrc/lazy/ts_backend/ts_node_lowering.h>

#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

namespace stepmesh {
namespace {

using at::Scalar;
using at::Tensor;
using torch::lazy::LazyTensor;
using torch::lazy::Value;

// --- select ---

// `where`, for which the core has no node.
class Where : public torch::lazy::TsNode {
 public:
  Where(const Value& condition, const Value& self, const Value& other, torch::lazy::Shape shape)
      : TsNode(torch::lazy::OpKind(at::aten::where), {condition, self, other}, {std::move(shape)},
               /*num_outputs=*/1) {}

  torch::lazy::TSOpVector Lower(std::shared_ptr<torch::jit::GraphFunction> function,
                                torch::lazy::TSLoweringContext* context) const override {
    std::vector<torch::jit::NamedValue> arguments;
    for (size_t i = 0; i < 3; ++i) arguments.emplace_back(context->GetOutputOp(operand(i)));
    return torch::lazy::LowerTSBuiltin(function, op().op, arguments);
  }
};

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  const auto device = torch::lazy::GetBackendDevice(condition, self, other);
  TORCH_CHECK(device.has_value(), "where: none of the tensors is on a lazy device");
  const auto value = [&](const Tensor& tensor, at::ScalarType dtype) {
    const Tensor typed = tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
    return torch::lazy::GetLtcTensorOrCreateForWrappedNumber(typed, *device)->GetIrValue();
  };
  const auto dtype = at::result_type(self, other);
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes());
  auto node = torch::lazy::MakeNode<Where>(value(condition, at::kBool), value(self, dtype),
                                           value(other, dtype), torch::lazy::Shape(dtype, sizes));
  return torch::lazy::CreateAtenFromLtcTensor(LazyTensor::Create(Value(std::move(node), 0), *device));
}

Tensor& where_out(const Tensor& condition, const Tensor& self, const Tensor& other, Tensor& out) {
  write(at::where(condition, self, other), out);
  return out;
}

// --- copies and fills ---

// The source as `self` is typed and shaped, as a value of its own.
Tensor copy(const Tensor& self, const Tensor& source, bool) {
  const Tensor typed = source.to(self.options());
  return typed.sizes() == self.sizes() ? at::clone(typed) : at::expand_copy(typed, self.sizes());
}

Tensor& zero_(Tensor& self) { return at::fill_(self, 0); }

Tensor& fill_(Tensor& self, const Tensor& value) {
  write(at::copy(self, value, false), self);
  return self;
}

// What operations that PyTorch makes of others do in place, below functionalization.
Tensor& add_(Tensor& self, const Tensor& other, const Scalar& alpha) {
  write(at::add(self, other, alpha), self);
  return self;
}

Tensor& sub_(Tensor& self, const Tensor& other, const Scalar& alpha) {
  write(at::sub(self, other, alpha), self);
  return self;
}

Tensor& mul_(Tensor& self, const Tensor& other) {
  write(at::mul(self, other), self);
  return self;
}

Tensor& div_(Tensor& self, const Tensor& other) {
  write(at::div(self, other), self);
  return self;
}

// --- truth ---

Tensor logical_not(const Tensor& self) { return at::eq(self, 0); }

Tensor logical_and(const Tensor& self, const Tensor& other) {
  return at::minimum(at::ne(self, 0), at::ne(other, 0));
}

Tensor logical_or(const Tensor& self, const Tensor& other) {
  return at::maximum(at::ne(self, 0), at::ne(other, 0));
}

Tensor logical_xor(const Tensor& self, const Tensor& other) {
  return at::ne(at::ne(self, 0), at::ne(other, 0));
}

bool are_truths(const Tensor& self, const Tensor& other) {
  return self.scalar_type() == at::kBool && other.scalar_type() == at::kBool;
}

Tensor bitwise_not(const Tensor& self) {
  return self.scalar_type() == at::kBool ? at::logical_not(self) : eagerly<ATEN_OP(bitwise_not)>(self);
}

Tensor bitwise_and(const Tensor& self, const Tensor& other) {
  return are_truths(self, other) ? at::logical_and(self, other)
                                 : eagerly<ATEN_OP2(bitwise_and, Tensor)>(self, other);
}

Tensor bitwise_or(const Tensor& self, const Tensor& other) {
  return are_truths(self, other) ? at::logical_or(self, other)
                                 : eagerly<ATEN_OP2(bitwise_or, Tensor)>(self, other);
}

Tensor bitwise_xor(const Tensor& self, const Tensor& other) {
  return are_truths(self, other) ? at::logical_xor(self, other)
                                 : eagerly<ATEN_OP2(bitwise_xor, Tensor)>(self, other);
}

Tensor isnan(const Tensor& self) { return at::ne(self, self); }

Tensor isposinf(const Tensor& self) {
  return at::eq(self, std::numeric_limits<double>::infinity());
}

Tensor isneginf(const Tensor& self) {
  return at::eq(self, -std::numeric_limits<double>::infinity());
}

// --- element by element ---

// What a number with a fraction has: its own type, or the default one.
at::ScalarType float_type(const Tensor& x) {
  return at::isFloatingType(x.scalar_type()) ? x.scalar_type() : at::kFloat;
}

Tensor clamp_max(const Tensor& self, const Scalar& max) {
  return at::clamp(self, std::nullopt, max);
}

Tensor clamp(const Tensor& self, const OptionalTensor& min, const OptionalTensor& max) {
  TORCH_CHECK(is_given(min) || is_given(max), "clamp: neither a least nor a greatest value");
  const Tensor raised = is_given(min) ? at::maximum(self, *min) : self;
  return is_given(max) ? at::minimum(raised, *max) : raised;
}

Tensor clamp_min_tensor(const Tensor& self, const Tensor& min) { return at::maximum(self, min); }

Tensor clamp_max_tensor(const Tensor& self, const Tensor& max) { return at::minimum(self, max); }

Tensor hardtanh(const Tensor& self, const Scalar& min, const Scalar& max) {
  return at::clamp(self, min, max);
}

Tensor hardtanh_backward(const Tensor& grad, const Tensor& self, const Scalar& min,
                         const Scalar& max) {
  const Tensor is_cut = at::logical_or(at::le(self, min), at::ge(self, max));
  return at::masked_fill(grad, is_cut, 0);
}

Tensor prelu(const Tensor& self, const Tensor& weight) {
  return at::where(at::gt(self, 0), self, weight * self);
}

std::tuple<Tensor, Tensor> prelu_backward(const Tensor& grad, const Tensor& self,
                                          const Tensor& weight) {
  const Tensor is_above = at::gt(self, 0);
  return {at::where(is_above, grad, weight * grad), at::masked_fill(self * grad, is_above, 0)};
}

// The two halves of a dimension.
std::tuple<Tensor, Tensor> halves(const Tensor& x, int64_t dim) {
  const int64_t extent = x.size(dim);
  TORCH_CHECK(extent % 2 == 0, "glu: dimension ", dim, " of ", x.sizes(), " has no halves");
  return {at::slice_copy(x, dim, 0, extent / 2), at::slice_copy(x, dim, extent / 2, extent)};
}

Tensor glu(const Tensor& self, int64_t dim) {
  const auto [value, gate] = halves(wide(self), dim);
  return (value * at::sigmoid(gate)).to(self.scalar_type());
}

Tensor glu_backward(const Tensor& grad, const Tensor& self, int64_t dim) {
  const auto [value, gate] = halves(wide(self), dim);
  const Tensor open = at::sigmoid(gate);
  const Tensor of_value = wide(grad) * open;
  return at::cat({of_value, of_value * at::rsub(open, 1) * value}, dim).to(self.scalar_type());
}

Tensor sign(const Tensor& self) { return at::sgn(self); }

// The nearer end is exact, as in PyTorch.
Tensor lerp(const Tensor& self, const Tensor& end, const Scalar& weight) {
  const Tensor from = wide(self), to = wide(end);
  const double share = weight.toDouble();
  const Tensor way = to - from;
  const Tensor result = std::abs(share) < 0.5 ? from + way * share : to - way * (1 - share);
  return result.to(self.scalar_type());
}

// log(1 + x) without its loss for small x: what 1 + x was rounded to is divided out again (theorem 4 of
// Goldberg's "What every computer scientist should know about floating-point arithmetic").
Tensor log1p(const Tensor& self) {
  const Tensor x = wide(self.to(float_type(self)));
  const Tensor sum = x + 1;
  const Tensor logarithm = at::log(sum);
  const Tensor result = at::where(at::eq(sum, 1), x, logarithm * (x / (sum - 1)));
  // Infinity less infinity says nothing.
  const Tensor is_end = at::eq(at::abs(logarithm), std::numeric_limits<double>::infinity());
  return at::where(is_end, logarithm, result).to(float_type(self));
}

// e^x - 1 the same way, which is Kahan's.
Tensor expm1(const Tensor& self) {
  const Tensor x = wide(self.to(float_type(self)));
  const Tensor power = at::exp(x);
  const Tensor rest = power - 1;
  const Tensor result = at::where(at::eq(power, 1), x, rest * (x / at::log(power)));
  // Where the power is nothing beside 1, or 1 beside it.
  const Tensor is_far = at::logical_or(at::eq(rest, -1), at::eq(rest, power));
  return at::where(is_far, rest, result).to(float_type(self));
}

Tensor softplus(const Tensor& self, const Scalar& beta, const Scalar& threshold) {
  const Tensor x = wide(self);
  const Tensor scaled = x * beta;
  const Tensor curve = at::log1p(at::exp(scaled)) / beta;
  return at::where(at::gt(scaled, threshold), x, curve).to(self.scalar_type());
}

Tensor softplus_backward(const Tensor& grad, const Tensor& self, const Scalar& beta,
                         const Scalar& threshold) {
  const Tensor scaled = wide(self) * beta;
  const Tensor slope = at::masked_fill(at::sigmoid(scaled), at::gt(scaled, threshold), 1);
  return (wide(grad) * slope).to(self.scalar_type());
}

// The logarithm of the sigmoid, and e^-|x|, which its gradient is made of.
std::tuple<Tensor, Tensor> log_sigmoid_forward(const Tensor& self) {
  const Tensor x = wide(self);
  const Tensor buffer = at::exp(at::neg(at::abs(x)));
  const Tensor output = at::clamp_max(x, 0) - at::log1p(buffer);
  return {output.to(self.scalar_type()), buffer.to(self.scalar_type())};
}

Tensor log_sigmoid_backward(const Tensor& grad, const Tensor& self, const Tensor&) {
  return (wide(grad) * at::sigmoid(at::neg(wide(self)))).to(self.scalar_type());
}

Tensor elu(const Tensor& self, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
  const Tensor x = wide(self);
  const Tensor below = at::expm1(x * input_scale) * (alpha.toDouble() * scale.toDouble());
  return at::where(at::le(x, 0), below, x * scale).to(self.scalar_type());
}

Tensor elu_backward(const Tensor& grad_output, const Scalar& alpha, const Scalar& scale,
                    const Scalar& input_scale, bool is_result, const Tensor& self_or_result) {
  const Tensor grad = wide(grad_output), x = wide(self_or_result);
  const double bound = alpha.toDouble() * scale.toDouble();
  const Tensor power = is_result ? x + bound : at::exp(x * input_scale) * bound;
  const Tensor below = grad * input_scale * power;
  return at::where(at::le(x, 0), below, grad * scale).to(grad_output.scalar_type());
}

Tensor mish(const Tensor& self) {
  const Tensor x = wide(self);
  return (x * at::tanh(at::softplus(x, 1, 20))).to(self.scalar_type());
}

Tensor bernoulli(const Tensor& self, std::optional<at::Generator> generator) {
  if (generator.has_value()) return eagerly<ATEN_OP(bernoulli)>(self, generator);
  const Tensor drawn = at::uniform(self.to(at::kFloat), 0, 1);
  return at::lt(drawn, self).to(self.scalar_type());
}

Tensor bernoulli_p(const Tensor& self, double p, std::optional<at::Generator> generator) {
  if (generator.has_value()) return eagerly<ATEN_OP2(bernoulli, p)>(self, p, generator);
  return at::lt(at::uniform(self.to(at::kFloat), 0, 1), p).to(self.scalar_type());
}

}  // namespace

void add_elements(torch::Library& library) {
  library.impl("where.self", where);
  library.impl("where.self_out", where_out);
  library.impl("copy", copy);
  library.impl("zero_", zero_);
  library.impl("fill_.Tensor", fill_);
  library.impl("add_.Tensor", add_);
  library.impl("sub_.Tensor", sub_);
  library.impl("mul_.Tensor", mul_);
  library.impl("div_.Tensor", div_);
  library.impl("logical_not", logical_not);
  library.impl("logical_and", logical_and);
  library.impl("logical_or", logical_or);
  library.impl("logical_xor", logical_xor);
  library.impl("bitwise_not", bitwise_not);
  library.impl("bitwise_and.Tensor", bitwise_and);
  library.impl("bitwise_or.Tensor", bitwise_or);
  library.impl("bitwise_xor.Tensor", bitwise_xor);
  library.impl("isnan", isnan);
  library.impl("isposinf", isposinf);
  library.impl("isneginf", isneginf);
  library.impl("clamp_max", clamp_max);
  library.impl("clamp.Tensor", clamp);
  library.impl("clamp_min.Tensor", clamp_min_tensor);
  library.impl("clamp_max.Tensor", clamp_max_tensor);
  library.impl("hardtanh", hardtanh);
  library.impl("hardtanh_backward", hardtanh_backward);
  library.impl("_prelu_kernel", prelu);
  library.impl("_prelu_kernel_backward", prelu_backward);
  library.impl("glu", glu);
  library.impl("glu_backward", glu_backward);
  library.impl("sign", sign);
  library.impl("lerp.Scalar", lerp);
  library.impl("log1p", log1p);
  library.impl("expm1", expm1);
  library.impl("softplus", softplus);
  library.impl("softplus_backward", softplus_backward);
  library.impl("log_sigmoid_forward", log_sigmoid_forward);
  library.impl("log_sigmoid_backward", log_sigmoid_backward);
  library.impl("elu", elu);
  library.impl("elu_backward", elu_backward);
  library.impl("mish", mish);
  library.impl("bernoulli", bernoulli);
  library.impl("bernoulli.p", bernoulli_p);
}

}  // namespace stepmesh
