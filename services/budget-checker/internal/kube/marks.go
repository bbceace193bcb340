// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/budget-checker/internal/budget"
)

// known returns the namespace's mark: as it is stored, or else as this replica
// remembers it.
func (l *Ledgers) known(namespace string, marks *corev1.ConfigMap) string {
	if mark, ok := marks.Data[namespace]; ok {
		return mark
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.marks[namespace]
}

func (l *Ledgers) readMarks(ctx context.Context) (*corev1.ConfigMap, error) {
	marks := &corev1.ConfigMap{}
	err := l.clients.core.Get().Namespace(l.namespace).Resource("configmaps").Name(marksName).Do(ctx).Into(marks)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read configmap %s/%s: %w", l.namespace, marksName, err)
	}
	if marks.Data == nil {
		marks.Data = map[string]string{}
	}
	return marks, nil
}

func (l *Ledgers) writeMarks(ctx context.Context, marks *corev1.ConfigMap) error {
	marks.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	request := l.clients.core.Put().Name(marksName)
	if marks.UID == "" {
		marks.Namespace, marks.Name = l.namespace, marksName
		request = l.clients.core.Post()
	}
	err := request.Namespace(l.namespace).Resource("configmaps").Body(marks).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("write configmap %s/%s: %w", l.namespace, marksName, err)
	}
	l.remember(marks)
	return nil
}

func (l *Ledgers) remember(marks *corev1.ConfigMap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.Copy(l.marks, marks.Data)
}

// unmarkDelay lets the namespace of a ledger end after it.
const unmarkDelay = 30 * time.Second

// unmark forgets the ledger of a namespace that has gone.
func (l *Ledgers) unmark(ctx context.Context, namespace string) error {
	err := l.clients.core.Get().Resource("namespaces").Name(namespace).Do(ctx).Error()
	if !apierrors.IsNotFound(err) {
		return err
	}
	marks, err := l.readMarks(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	delete(l.marks, namespace)
	l.mu.Unlock()
	if _, found := marks.Data[namespace]; !found {
		return nil
	}
	delete(marks.Data, namespace)
	return l.writeMarks(ctx, marks)
}

// ledgerFeed hands ledgers that a reflector sees to the book. Those that are
// not marked are left for Ensure.
type ledgerFeed struct {
	ledgers *Ledgers
	book    *budget.Book
}

// Add implements cache.ReflectorStore, as do the methods that follow.
func (f ledgerFeed) Add(item any) error {
	ledger := item.(*v1alpha1.GPUBudget)
	f.ledgers.mu.Lock()
	marked := strings.HasSuffix(f.ledgers.marks[ledger.Namespace], "/"+string(ledger.UID))
	f.ledgers.mu.Unlock()
	if ledger.Name == v1alpha1.GPUBudgetName && marked {
		f.book.Put(ledger)
	}
	return nil
}

// Update takes in a ledger that has changed.
func (f ledgerFeed) Update(item any) error { return f.Add(item) }

// Delete takes out a ledger that is gone. Once its namespace has gone too, the
// mark is of no more use.
func (f ledgerFeed) Delete(item any) error {
	ledger := item.(*v1alpha1.GPUBudget)
	f.book.Remove(ledger)
	time.AfterFunc(unmarkDelay, func() {
		ctx, cancel := context.WithTimeout(context.Background(), unmarkDelay)
		defer cancel()
		if err := f.ledgers.unmark(ctx, ledger.Namespace); err != nil && !apierrors.IsConflict(err) {
			f.ledgers.log.Warn("cannot take out the mark of a ledger", zap.String("namespace", ledger.Namespace), zap.Error(err))
		}
	})
	return nil
}

// Replace takes in all ledgers.
func (f ledgerFeed) Replace(items []any, _ string) error {
	kept := map[types.UID]bool{}
	for _, item := range items {
		kept[item.(*v1alpha1.GPUBudget).UID] = true
		_ = f.Add(item)
	}
	f.book.Retain(kept)
	return nil
}

// Resync has nothing to do.
func (f ledgerFeed) Resync() error { return nil }
