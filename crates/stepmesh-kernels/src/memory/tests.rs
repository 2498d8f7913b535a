//! What goes past the caches arrives whole, wherever it starts.

use super::{Region, finish_writes};

#[test]
fn writes_past_the_caches_are_those_that_were_asked_for() {
    let values: Vec<f32> = (0_u16..600).map(f32::from).collect();
    for start in 0..9 {
        for len in [0, 1, 2, 3, 4, 5, 31, 512] {
            let mut memory = vec![-1.0_f32; 600];
            let region = Region::of(&mut memory);
            region.write_past_caches(start, &values[..len]);
            finish_writes();
            let mut found = vec![0.0; 600];
            region.read(0, 1, &mut found, |x: f32| x);
            let written = start..start + len;
            for (idx, x) in found.iter().enumerate() {
                let wanted = if written.contains(&idx) {
                    values[idx - start]
                } else {
                    -1.0
                };
                assert_eq!(
                    x.to_bits(),
                    wanted.to_bits(),
                    "{idx}, from {start}, {len} long"
                );
            }
        }
    }
}
