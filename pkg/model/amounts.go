// SPDX-License-Identifier: Apache-2.0

package model

import "cozystack.io/gpu/pkg/gpu"

// Amounts are units by quota key: what an object uses, or what a tenant
// declares as its budget. A budget that lacks a key does not limit it; a use
// that lacks a key is 0.
type Amounts map[string]int64

// MaxAmount is the largest amount that can be declared: the largest whole
// number that JSON carries without loss to every reader.
const MaxAmount = 1 << 53

// MaxUsage is the largest amount that one object can use. What millions of
// objects use still is a number of 64 bits.
const MaxUsage = 1 << 40

// maxSum is where sums end: beyond every amount that can be declared, and far
// from what 64 bits hold.
const maxSum = 1 << 60

func plus(a, b int64) int64 { return min(min(a, maxSum)+min(b, maxSum), maxSum) }

const classQuotaKeyPrefix = gpu.QuotaKeyPrefix + "class."

// ClassQuotaKey returns the quota key that limits the units of the class.
func ClassQuotaKey(class string) string {
	return classQuotaKeyPrefix + class
}
