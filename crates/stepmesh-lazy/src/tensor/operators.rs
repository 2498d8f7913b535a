//! `+`, `-`, `*`, `/` on tensors, numbers, and results of them, so that formulas read as formulas:
//! `((&a * &b)? + &c)?`, or without the inner `?`, as an error of a part is that of the whole.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::LazyTensor;
use crate::Error;

macro_rules! operator {
    ($($trait:ident, $method:ident;)+) => {
        $(
            operator!(@pairs $trait, $method,
                LazyTensor, LazyTensor; LazyTensor, &LazyTensor;
                &LazyTensor, LazyTensor; &LazyTensor, &LazyTensor;);
            // One float and one integer, so that literals need no suffix.
            operator!(@numbers $trait, $method, f64 i64);
            operator!(@results $trait, $method, LazyTensor &LazyTensor);

            impl $trait<Result<LazyTensor, Error>> for LazyTensor {
                type Output = Result<LazyTensor, Error>;

                #[track_caller]
                fn $method(self, other: Result<LazyTensor, Error>) -> Self::Output {
                    LazyTensor::$method(&self, &other?)
                }
            }

            impl $trait<Result<LazyTensor, Error>> for &LazyTensor {
                type Output = Result<LazyTensor, Error>;

                #[track_caller]
                fn $method(self, other: Result<LazyTensor, Error>) -> Self::Output {
                    LazyTensor::$method(self, &other?)
                }
            }
        )+
    };
    (@pairs $trait:ident, $method:ident, $($left:ty, $right:ty;)+) => {
        $(impl $trait<$right> for $left {
            type Output = Result<LazyTensor, Error>;

            #[track_caller]
            fn $method(self, other: $right) -> Self::Output {
                let (left, right): (&LazyTensor, &LazyTensor) = (&self, &other);
                LazyTensor::$method(left, right)
            }
        })+
    };
    (@numbers $trait:ident, $method:ident, $($number:ty)+) => {
        $(
            impl $trait<$number> for LazyTensor {
                type Output = Result<LazyTensor, Error>;

                #[track_caller]
                fn $method(self, other: $number) -> Self::Output {
                    LazyTensor::$method(&self, other)
                }
            }

            impl $trait<$number> for &LazyTensor {
                type Output = Result<LazyTensor, Error>;

                #[track_caller]
                fn $method(self, other: $number) -> Self::Output {
                    LazyTensor::$method(self, other)
                }
            }
        )+
    };
    (@results $trait:ident, $method:ident, $($right:ty)+) => {
        $(impl $trait<$right> for Result<LazyTensor, Error> {
            type Output = Self;

            #[track_caller]
            fn $method(self, other: $right) -> Self::Output {
                let (left, right): (&LazyTensor, &LazyTensor) = (&self?, &other);
                LazyTensor::$method(left, right)
            }
        })+
    };
}

operator! {
    Add, add;
    Sub, sub;
    Mul, mul;
    Div, div;
}

impl Neg for LazyTensor {
    type Output = Result<Self, Error>;

    #[track_caller]
    fn neg(self) -> Self::Output {
        Self::neg(&self)
    }
}

impl Neg for &LazyTensor {
    type Output = Result<LazyTensor, Error>;

    #[track_caller]
    fn neg(self) -> Self::Output {
        LazyTensor::neg(self)
    }
}
