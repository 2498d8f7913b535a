
STEPMESH_KERNEL(k0_add_silu_reduce_max, const u16* p0, const u16* p1, u16* p2, u16* p3) {
    __shared__ Max<float> lanes4[64];
    for (u32 row = blockIdx.x; row < 6u; row += gridDim.x) {
        STEPMESH_BARRIER();
        STEPMESH_TOGETHER(t) {
            Max<float> r4 = Max<float>::none();
            for (u32 k = t; k < 300u; k += blockDim.x) {
                const u32 i = row * 300u + k;
                const float x0 = bf16_to_f32(p0[i]);
                const float x1 = bf16_to_f32(p1[k]);
                const float v2 = add(x0, x1);
                const float v3 = silu(v2);
                r4 = Max<float>::join(r4, Max<float>::of(v3, 0));
                p2[i] = f32_to_bf16(v3);
            }
            lanes4[t] = r4;
        }
        const float v4 = fold_block(lanes4).value;
        STEPMESH_EACH(t) if (t == 0) {
            p3[row] = f32_to_bf16(v4);
        }
    }
}

} // namespace stepmesh
