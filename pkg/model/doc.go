// SPDX-License-Identifier: Apache-2.0

// Package model holds the rules about GPU classes that more than one service
// must agree on. It is pure: no clients, no clock of its own, no logging.
package model
