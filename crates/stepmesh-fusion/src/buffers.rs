//! Where values lie: arguments, results, constants, and one block of memory that holds all that steps
//! hand on to each other, each for as long as it is needed.
/// The buffers of a plan by their numbers: arguments first, then results, constants, and parts of the
/// workspace.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Bytes of each argument.
    pub args: Vec<usize>,
    /// Bytes of each result.
    pub results: Vec<usize>,
    /// Bytes of each constant.
    pub constants: Vec<usize>,
    /// What the workspace holds.
    pub parts: Vec<Part>,
    /// Bytes of the workspace.
    pub workspace_len: usize,
}

/// A part of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// How long it is.
    pub len_bytes: usize,
    /// The step that writes it.
    pub first: usize,
    /// The last that reads it.
    pub last: usize,
    /// Where it lies, in bytes; 0 until it has its place.
    pub offset: usize,
}

impl Buffers {
    /// The buffer of an argument.
    #[must_use]
    pub fn arg(number: usize) -> usize {
        number
    }

    /// The buffer of a result.
    #[must_use]
    pub fn result(&self, number: usize) -> usize {
        self.args.len() + number
    }

    /// The buffer of a constant.
    #[must_use]
    pub fn constant(&self, number: usize) -> usize {
        self.args.len() + self.results.len() + number
    }

    /// Adds a part, and gives its buffer.
    pub fn add_part(&mut self, len_bytes: usize, first: usize, last: usize) -> usize {
        self.parts.push(Part {
            len_bytes,
            first,
            last,
            offset: 0,
        });
        self.constant(self.constants.len()) + self.parts.len() - 1
    }

    /// Gives each part its place, aligned: the smallest gap that holds it while it is needed. `None` if
    /// it is more than a process can have.
    pub fn place(&mut self, step_count: usize, align_bytes: usize) -> Option<()> {
        let mut starting: Vec<Vec<usize>> = vec![Vec::new(); step_count + 1];
        let mut ending: Vec<Vec<usize>> = vec![Vec::new(); step_count + 1];
        for (idx, part) in self.parts.iter().enumerate() {
            starting[part.first].push(idx);
            ending[part.last].push(idx);
        }
        let mut gaps = Gaps::default();
        for step in 0..=step_count {
            for idx in &starting[step] {
                let len = self.parts[*idx]
                    .len_bytes
                    .checked_next_multiple_of(align_bytes)?;
                self.parts[*idx].offset = gaps.take(len)?;
            }
            for idx in &ending[step] {
                let len = self.parts[*idx].len_bytes.next_multiple_of(align_bytes);
                gaps.give(self.parts[*idx].offset, len);
            }
        }
        self.workspace_len = gaps.end_max;
        Some(())
    }
}

/// Free memory below an end that moves.
#[derive(Debug, Default)]
struct Gaps {
    /// Offset and bytes, ascending, none next to another.
    list: Vec<(usize, usize)>,
    end: usize,
    end_max: usize,
}

impl Gaps {
    fn take(&mut self, len: usize) -> Option<usize> {
        let fitting = self.list.iter().enumerate().filter(|(_, gap)| gap.1 >= len);
        if let Some((idx, _)) = fitting.min_by_key(|(_, gap)| gap.1) {
            let (offset, gap_len) = self.list[idx];
            if gap_len == len {
                self.list.remove(idx);
            } else {
                self.list[idx] = (offset + len, gap_len - len);
            }
            return Some(offset);
        }
        let offset = self.end;
        self.end = self.end.checked_add(len)?;
        self.end_max = self.end_max.max(self.end);
        Some(offset)
    }

    fn give(&mut self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let at = self.list.partition_point(|gap| gap.0 < offset);
        self.list.insert(at, (offset, len));
        if at + 1 < self.list.len() && offset + len == self.list[at + 1].0 {
            self.list[at].1 += self.list.remove(at + 1).1;
        }
        if at > 0 && self.list[at - 1].0 + self.list[at - 1].1 == offset {
            self.list[at - 1].1 += self.list.remove(at).1;
        }
        if let Some((offset, len)) = self.list.last().copied()
            && offset + len == self.end
        {
            self.list.pop();
            self.end = offset;
        }
    }
}

#[cfg(test)]
mod tests;
