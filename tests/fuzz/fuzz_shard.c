/* Shard indexes: the first bytes choose the grid and the codecs, the rest is the index. Extents
 * that come out lie within the object. */
#include "format/shard.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    enum { RANK = 2, MOST = 16, OBJECT = 100000 };
    damacy__codec codecs[3];
    damacy__sharding sharding;
    damacy__extent extents[MOST];
    uint8_t index[MOST * 16 + 8];
    damacy_error err;
    uint32_t n = 0;

    if (size < 2) {
        return 0;
    }
    memset(codecs, 0, sizeof codecs);
    memset(&sharding, 0, sizeof sharding);
    memset(index, 0, sizeof index);
    if (data[0] & 1) {
        codecs[n].kind = DAMACY__CODEC_TRANSPOSE;
        for (uint32_t i = 0; i <= RANK; i++) {
            codecs[n].order[i] = RANK - i;
        }
        n++;
    }
    codecs[n].kind = DAMACY__CODEC_BYTES;
    codecs[n++].big_endian = data[0] >> 1 & 1;
    if (data[0] & 4) {
        codecs[n++].kind = DAMACY__CODEC_CRC32C;
    }
    sharding.index_chain.codecs = codecs;
    sharding.index_chain.n = n;
    sharding.grid[0] = 1 + (data[1] & 3);
    sharding.grid[1] = 1 + (data[1] >> 2 & 3);
    sharding.n_entries = (uint64_t)(sharding.grid[0] * sharding.grid[1]);
    sharding.index_size = sharding.n_entries * 16 + (data[0] & 4);
    memcpy(index, data + 2, DAMACY__MIN(size - 2, (size_t)sharding.index_size));
    if ((data[0] & 12) == 12) { /* a right checksum, or the entries would never be looked at */
        const uint32_t crc = damacy__crc32c(index, (size_t)sharding.n_entries * 16);
        memcpy(index + sharding.n_entries * 16, &crc, 4);
    }
    if (damacy__shard_decode(&sharding, RANK, damacy__span_of(index, (size_t)sharding.index_size),
                             OBJECT, extents, &err) == DAMACY_OK) {
        for (uint64_t i = 0; i < sharding.n_entries; i++) {
            assert((extents[i].offset == UINT64_MAX && extents[i].size == UINT64_MAX) ||
                   (extents[i].offset <= OBJECT && extents[i].size <= OBJECT - extents[i].offset));
        }
    }
    return 0;
}
