package rollup

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
)

// growth is the ratio of the bounds of a bucket.
const growth = 1.1

// maxBucket begins at about 150 days.
const maxBucket = 245

// Histogram counts durations in milliseconds, by bucket. Bucket 0 counts zero; bucket b counts
// values from growth^(b-1) up to growth^b.
type Histogram []uint64

// Add counts one duration.
func (h *Histogram) Add(ms int64) { h.count(bucket(ms), 1) }

func (h *Histogram) count(b int, n uint64) {
	if b >= len(*h) {
		*h = slices.Grow(*h, b+1-len(*h))[:b+1] // Grow leaves zeroes behind the length of a slice that is never cut
	}
	(*h)[b] += n
}

func bucket(ms int64) int {
	if ms <= 0 {
		return 0
	}
	return min(1+int(math.Log(float64(ms))/math.Log(growth)+1e-9), maxBucket)
}

// middle returns the geometric middle of a bucket.
func middle(b int) float64 {
	if b == 0 {
		return 0
	}
	return math.Pow(growth, float64(b)-0.5)
}

// Count returns how many durations were added.
func (h Histogram) Count() (n uint64) {
	for _, c := range h {
		n += c
	}
	return n
}

// Percentile returns the duration in milliseconds that the part p of the durations does not
// exceed, within 5 %; 0 for an empty histogram.
func (h Histogram) Percentile(p float64) float64 {
	n := h.Count()
	if n == 0 {
		return 0
	}
	want := max(uint64(math.Ceil(p*float64(n))), 1)
	for b, n := range h {
		if n >= want {
			return middle(b)
		}
		want -= n
	}
	panic("rollup: the counts of a histogram changed")
}

// Encode returns the column's value: pairs of the distance to the bucket before and of the
// count, as varints.
func (h Histogram) Encode() []byte {
	out := []byte{}
	before := 0
	for b, n := range h {
		if n > 0 {
			out = binary.AppendUvarint(out, uint64(b-before))
			out = binary.AppendUvarint(out, n)
			before = b
		}
	}
	return out
}

var errDamaged = errors.New("rollup: a histogram is damaged")

// MergeEncoded adds the counts of a column's value.
func (h *Histogram) MergeEncoded(b []byte) error {
	at := uint64(0)
	for len(b) > 0 {
		step, n := binary.Uvarint(b)
		if n <= 0 {
			return errDamaged
		}
		count, m := binary.Uvarint(b[n:])
		if m <= 0 {
			return errDamaged
		}
		b = b[n+m:]
		if at += step; at > maxBucket || step > maxBucket {
			return errDamaged
		}
		h.count(int(at), count)
	}
	return nil
}
