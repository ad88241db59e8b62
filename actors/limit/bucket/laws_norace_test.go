//go:build !race

package bucket

import "testing"

// The race detector multiplies the cost of a simulated cluster, and sees in a few of them what it sees in many.
func TestLawsOfBucketsOfManySeeds(t *testing.T) {
	lawOfBuckets(t, 48)
	plannedMoves(t, 60)
}
