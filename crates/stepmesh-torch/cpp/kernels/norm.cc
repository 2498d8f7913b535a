// Kernels for losses and for batch norm, of which group norm and instance norm are made.

#include "common.h"

#include <array>
#include <tuple>
#include <vector>

namespace stepmesh {
namespace {

using at::Tensor;

// --- losses ---

Tensor reduced(const Tensor& losses, int64_t reduction) {
  switch (reduction) {
    case at::Reduction::Mean:
      return at::mean(losses);
    case at::Reduction::Sum:
      return at::sum(losses);
    default:
      return losses;
  }
}

Tensor mse_loss(const Tensor& self, const Tensor& target, int64_t reduction) {
  const Tensor difference = wide(self) - wide(target);
  return reduced(difference * difference, reduction).to(at::result_type(self, target));
}

Tensor mse_loss_backward(const Tensor& grad, const Tensor& self, const Tensor& target,
                         int64_t reduction) {
  const Tensor difference = wide(self) - wide(target);
  const double count = reduction == at::Reduction::Mean ? static_cast<double>(self.numel()) : 1;
  return (difference * (2 / count) * wide(grad)).to(self.scalar_type());
}

// Squares near 0, straight beyond, as steep as `slope` times what the squares end with.
Tensor bent(const Tensor& self, const Tensor& target, double end, double slope) {
  const Tensor size = at::abs(wide(self) - wide(target));
  const Tensor square = size * size * (slope / end / 2);
  return at::where(at::lt(size, end), square, size * slope - end * slope / 2);
}

Tensor bent_backward(const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction,
                     double end, double slope) {
  const Tensor difference = wide(self) - wide(target);
  const Tensor steepness = at::clamp(difference / end, -1, 1);
  const double count = reduction == at::Reduction::Mean ? static_cast<double>(self.numel()) : 1;
  return (steepness * (slope / count) * wide(grad)).to(self.scalar_type());
}

Tensor smooth_l1_loss(const Tensor& self, const Tensor& target, int64_t reduction, double beta) {
  const Tensor losses =
      beta == 0 ? at::abs(wide(self) - wide(target)) : bent(self, target, beta, 1);
  return reduced(losses, reduction).to(at::result_type(self, target));
}

Tensor smooth_l1_loss_backward(const Tensor& grad, const Tensor& self, const Tensor& target,
                               int64_t reduction, double beta) {
  // Its steepness at 0 is nothing of 0, as the square's is.
  if (beta == 0) {
    const Tensor sign = at::sgn(wide(self) - wide(target));
    const double count = reduction == at::Reduction::Mean ? static_cast<double>(self.numel()) : 1;
    return (sign * (1 / count) * wide(grad)).to(self.scalar_type());
  }
  return bent_backward(grad, self, target, reduction, beta, 1);
}

Tensor huber_loss(const Tensor& self, const Tensor& target, int64_t reduction, double delta) {
  return reduced(bent(self, target, delta, delta), reduction).to(at::result_type(self, target));
}

Tensor huber_loss_backward(const Tensor& grad, const Tensor& self, const Tensor& target,
                           int64_t reduction, double delta) {
  return bent_backward(grad, self, target, reduction, delta, delta);
}

// Logarithms no lower than PyTorch takes them for.
Tensor binary_cross_entropy(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                            int64_t reduction) {
  const Tensor x = wide(self), truth = wide(target);
  const Tensor of_true = at::clamp_min(at::log(x), -100);
  const Tensor of_false = at::clamp_min(at::log1p(at::neg(x)), -100);
  Tensor losses = (truth - 1) * of_false - truth * of_true;
  if (is_given(weight)) losses = losses * wide(weight);
  return reduced(losses, reduction).to(self.scalar_type());
}

Tensor binary_cross_entropy_backward(const Tensor& grad, const Tensor& self, const Tensor& target,
                                     const OptionalTensor& weight, int64_t reduction) {
  const Tensor x = wide(self);
  const Tensor divisor = at::clamp_min(at::rsub(x, 1) * x, 1e-12);
  Tensor result = wide(grad) * ((x - wide(target)) / divisor);
  if (is_given(weight)) result = result * wide(weight);
  if (reduction == at::Reduction::Mean) result = result / static_cast<double>(self.numel());
  return result.to(self.scalar_type());
}

// --- batch norm, of which group norm and instance norm are made ---

// A vector with an element for each channel, as `x` is shaped.
Tensor per_channel(const Tensor& vector, const Tensor& x) {
  std::vector<int64_t> sizes(x.dim(), 1);
  sizes[1] = x.size(1);
  return at::view_copy(vector, sizes);
}

std::vector<int64_t> all_but_channels(const Tensor& x) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  return dims;
}

double elements_per_channel(const Tensor& x) {
  return static_cast<double>(x.numel()) / static_cast<double>(x.size(1));
}

// The type of weight and bias, and of what belongs to them.
at::ScalarType parameter_type(const Tensor& input, const OptionalTensor& weight) {
  return is_given(weight) ? weight->scalar_type() : input.scalar_type();
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm(
    const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
    const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
    double momentum, double epsilon) {
  TORCH_CHECK(input.dim() >= 2, "batch norm: no channels in ", input.sizes());
  const Tensor x = wide(input);
  Tensor mean, variance;
  if (training) {
    const auto dims = all_but_channels(x);
    mean = at::mean(x, dims);
    const Tensor centred = x - per_channel(mean, x);
    const Tensor squares = at::sum(centred * centred, dims);
    const double count = elements_per_channel(x);
    variance = squares / count;
    // PyTorch writes to them, which the schema does not say.
    const auto follow = [&](const OptionalTensor& running, const Tensor& found) {
      if (is_given(running)) write(wide(running) * (1 - momentum) + found * momentum, *running);
    };
    follow(running_mean, mean);
    follow(running_var, squares / (count - 1));
  } else {
    TORCH_CHECK(is_given(running_mean) && is_given(running_var),
                "batch norm: neither training, nor a running mean and variance");
    mean = wide(running_mean);
    variance = wide(running_var);
  }
  const Tensor scale = at::rsqrt(variance + epsilon);
  Tensor output = (x - per_channel(mean, x)) * per_channel(scale, x);
  if (is_given(weight)) output = output * per_channel(wide(weight), x);
  if (is_given(bias)) output = output + per_channel(wide(bias), x);
  output = output.to(input.scalar_type());
  if (!training) {
    const Tensor none = at::empty({0}, mean.options());
    return {output, none, none};
  }
  // For the gradient.
  const auto dtype = parameter_type(input, weight);
  return {output, mean.to(dtype), scale.to(dtype)};
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm_backward(
    const Tensor& grad_output, const Tensor& input, const OptionalTensor& weight,
    const OptionalTensor& running_mean, const OptionalTensor& running_var,
    const OptionalTensor& save_mean, const OptionalTensor& save_scale, bool training, double epsilon,
    std::array<bool, 3> wanted) {
  const Tensor grad = wide(grad_output), x = wide(input);
  const auto dims = all_but_channels(x);
  const double count = elements_per_channel(x);
  const Tensor mean = per_channel(wide(training ? save_mean : running_mean), x);
  const Tensor scale = per_channel(
      training ? wide(save_scale) : at::rsqrt(wide(running_var) + epsilon), x);
  const Tensor normalised = (x - mean) * scale;
  const Tensor of_bias = at::sum(grad, dims), of_weight = at::sum(grad * normalised, dims);
  Tensor of_input = grad;
  if (training) {
    // What a change of the mean, and of the deviation, takes back.
    of_input = of_input - per_channel(of_bias / count, x);
    of_input = of_input - normalised * per_channel(of_weight / count, x);
  }
  of_input = of_input * scale;
  if (is_given(weight)) of_input = of_input * per_channel(wide(weight), x);
  const auto dtype = parameter_type(input, weight);
  return {wanted[0] ? of_input.to(input.scalar_type()) : Tensor(),
          wanted[1] ? of_weight.to(dtype) : Tensor(), wanted[2] ? of_bias.to(dtype) : Tensor()};
}

}  // namespace

void add_norms_and_losses(torch::Library& library) {
  library.impl("mse_loss", mse_loss);
  library.impl("mse_loss_backward", mse_loss_backward);
  library.impl("smooth_l1_loss", smooth_l1_loss);
  library.impl("smooth_l1_loss_backward", smooth_l1_loss_backward);
  library.impl("huber_loss", huber_loss);
  library.impl("huber_loss_backward", huber_loss_backward);
  library.impl("binary_cross_entropy", binary_cross_entropy);
  library.impl("binary_cross_entropy_backward", binary_cross_entropy_backward);
  library.impl("native_batch_norm", native_batch_norm);
  library.impl("native_batch_norm_backward", native_batch_norm_backward);
}

}  // namespace stepmesh
