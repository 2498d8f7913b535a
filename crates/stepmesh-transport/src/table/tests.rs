//! Tests of the table.

use super::{GENERATION_MAX, Table};

#[test]
fn an_id_of_a_removed_value_finds_nothing() {
    let mut table = Table::new(4);
    let one = table.insert_with(|id| id).unwrap();
    assert_eq!(table.remove(one), Some(one));
    let two = table.insert_with(|id| id).unwrap();
    assert_ne!(one, two);
    assert_eq!(table.get(one), None);
    assert_eq!(table.get_mut(one), None);
    assert_eq!(table.remove(one), None);
    assert_eq!(table.get(two), Some(&two));
    assert_eq!(table.get(u32::MAX), None);
}

#[test]
fn it_is_bounded() {
    let mut table = Table::new(2);
    let ids = [(); 2].map(|()| table.insert_with(|id| id).unwrap());
    assert_eq!(table.insert_with(|id| id), None);
    table.remove(ids[0]);
    assert!(table.insert_with(|id| id).is_some());
    assert_eq!(
        (table.len(), table.iter().count(), table.iter_mut().count()),
        (2, 2, 2)
    );
}

#[test]
fn no_id_comes_back_when_the_generations_of_a_slot_are_used_up() {
    let mut table = Table::new(1);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..=GENERATION_MAX + 1 {
        let id = table.insert_with(|id| id).unwrap();
        assert!(seen.insert(id));
        table.remove(id);
    }
    assert_eq!(table.slots.len(), 2);
}
