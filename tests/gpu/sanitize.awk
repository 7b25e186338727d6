# The findings in a log of compute-sanitizer, one a line; those that are known to be none are counted
# in a last line "# known: ...". Set `tool`.
#
# What is known, and why it is none:
#
# links      racecheck, zstd_execute, zstd_relay, lz4_team and lz4_relay: lanes shorten links of a tile or a step while others
#            follow them. Each value that a link ever has leads to an ancestor of the byte, all of which end at the
#            same source, and every access is of 16 or 32 bits at once, so that a reader sees one of
#            them; a tile's size bounds the hops. Both sides must be the two functions for links.
# peek       racecheck, zstd_execute and zstd_relay: 8 bytes of a tile at any alignment are read as words while other
#            lanes write other bytes of these words. The wanted bytes are not written then: MARKS has
#            none of them, and only matches that it marks are written between these barriers; bytes
#            that the lane wrote itself come in its own order. The others are shifted out or not
#            stored. One side must be damacy__exec_peek_word, the other a store of one byte, or of two that
#            belong to the same segment (damacy__exec_store_pairs).
# scout      racecheck, zstd_relay: the last warp only arrives at the barriers of the others, and racecheck
#            loses count of it: it tells of bytes of a tile that this warp reads after a barrier of the
#            whole block and others wrote before. All warps read them by the same code, and it tells of
#            no other; synccheck finds every warp at that barrier. The reader must be of the last warp.
# words      initcheck, zstd_execute and zstd_relay: a source is read as aligned words, of which the outer ones may
#            have bytes that nobody wrote. No word is read that has not a wanted byte, and the others
#            are shifted out: zstd_gpu_gives_the_same_whatever_memory_held. Only reads of 4 bytes by
#            the function for words count; the test decodes every byte rightly.
function finish() {
    if (finding == "")
        return
    kind = ""
    both = finding
    n_links = gsub(/Thread \([0-9,]*\) at damacy__(exec|lz4)_link_(load|store)\(/, "&", both)
    if (tool == "racecheck" && finding ~ /hazard/ && n_links == 2)
        kind = "links"
    else if (tool == "racecheck" && finding ~ /hazard/ && finding ~ /Read Thread \([0-9,]*\) at damacy__exec_peek_word\(/ &&
             finding ~ /Write Thread \([0-9,]*\) at damacy__sts(8|16)\(/)
        kind = "peek"
    else if (tool == "racecheck" && finding ~ /RAW hazard/ && finding ~ /Write Thread \([0-9,]*\) at damacy__sts(8|16)\(/ &&
             finding ~ /Read Thread \((4[89][0-9]|50[0-9]|51[01]|99[2-9]|10[01][0-9]|102[0-3]),0,0\) at damacy__lds8\(/)
        kind = "scout"
    else if (tool == "initcheck" && finding ~ /Uninitialized __global__ memory read of size 4 bytes/ &&
               finding ~ /at damacy__exec_word\(/)
        kind = "words"
    if (kind == "")
        print substr(finding, 1, 400)
    else
        known[kind]++
    finding = ""
}
!/^=========/ { next }
/SUMMARY/ { finish(); next }
{
    line = substr($0, 11)
    sub(/^ +/, "", line)
}
line ~ /^(Error:|Warning:|Invalid |Uninitialized |Barrier error|Program hit|Leaked |Misaligned )/ { finish(); finding = line; next }
line == "" { finish(); next }
finding != "" && line !~ /^(Saved host|Host Frame)/ { finding = finding " | " line }
END {
    finish()
    text = ""
    for (kind in known)
        text = text (text == "" ? "" : ", ") known[kind] " " kind
    if (text != "")
        print "# known: " text
}
