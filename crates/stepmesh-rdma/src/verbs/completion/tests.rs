//! What is made of a completion as a device writes it.

use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, imm_data_invalidated_rkey_union_t};

use super::{Opcode, WorkCompletion, WorkStatus};

fn raw(status: u32, flags: u32) -> ibv_wc {
    ibv_wc {
        wr_id: 7,
        status,
        opcode: ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
        vendor_err: 0x81,
        byte_len: 24,
        imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t {
            imm_data: 0x1234_5678_u32.to_be(),
        },
        qp_num: 17,
        src_qp: 18,
        wc_flags: flags,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

#[test]
fn an_immediate_is_read_in_network_order_and_only_where_there_is_one() {
    let with = WorkCompletion::of(&raw(0, ibv_wc_flags::IBV_WC_WITH_IMM.0));
    assert_eq!(with.imm_data, Some(0x1234_5678));
    assert_eq!(with.opcode, Opcode::ReceiveRdmaWithImmediate);
    assert!(with.status.is_success());
    assert_eq!(WorkCompletion::of(&raw(0, 0)).imm_data, None);
}

#[test]
fn a_flushed_request_is_told_from_the_one_that_failed() {
    let flushed = WorkCompletion::of(&raw(5, 0));
    let failed = WorkCompletion::of(&raw(10, 0));
    assert!(flushed.status.is_flush());
    assert!(!failed.status.is_flush());
    assert_eq!(
        (failed.status, failed.vendor_error),
        (WorkStatus::RemoteAccess, 0x81)
    );
}

#[test]
fn a_status_of_a_later_library_is_unknown_and_keeps_its_number() {
    assert_eq!(
        WorkCompletion::of(&raw(99, 0)).status,
        WorkStatus::Unknown(99)
    );
}
