//! Tiles of random numbers, as the ABI defines them bit for bit. The arithmetic is `stepmesh_graph`'s.

use stepmesh_graph::{DType, philox};

/// Seed, first block, and where in the value a tile starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) seed: u64,
    pub(super) offset: u64,
    pub(super) first: usize,
}

/// Fills a tile of what is computed in f32.
pub(super) fn narrow(source: Source, normal: bool, dtype: DType, tile: &mut [f32]) {
    let bits = match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    };
    let four = |block| {
        let words = philox::block(source.seed, block);
        if !normal {
            return words.map(|word| philox::uniform(word, bits));
        }
        let [w0, w1, w2, w3] = words;
        let ([a, b], [c, d]) = (philox::normal([w0, w1]), philox::normal([w2, w3]));
        [a, b, c, d]
    };
    fill(source, tile, four);
}

/// Fills a tile of f64.
pub(super) fn wide(source: Source, normal: bool, tile: &mut [f64]) {
    let two = |block| {
        let words = philox::block(source.seed, block);
        if normal {
            return philox::normal_f64(words);
        }
        let [w0, w1, w2, w3] = words;
        [philox::uniform_f64(w0, w1), philox::uniform_f64(w2, w3)]
    };
    fill(source, tile, two);
}

/// Each block gives `N` elements.
fn fill<T: Copy, const N: usize>(source: Source, tile: &mut [T], make: impl Fn(u64) -> [T; N]) {
    let mut element = source.first;
    let mut rest = tile;
    while !rest.is_empty() {
        let skip = element % N;
        let block = u64::try_from(element / N).unwrap_or(u64::MAX);
        let made = make(source.offset.wrapping_add(block));
        let len = (N - skip).min(rest.len());
        let (head, tail) = rest.split_at_mut(len);
        head.copy_from_slice(&made[skip..skip + len]);
        element += len;
        rest = tail;
    }
}
