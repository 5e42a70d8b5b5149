// @ts-check
// Question: operators call sync every second while buyers pay, and every tenth payment is left in doubt. Is each doubt
// settled once, does sync keep its hands off what is at work, and do the buyers not notice?
//
// paymentd: deploy/profiles/default.env.
// Run:      k6 run sync-under-load.js                  RATE=10 (buyers per second) DURATION=30s
// Read:     doubts is how many were answered 202; settled_by_sync how many of them sync found paid, the rest was
//           recovery's; payment_latency{kind:plain} is what the buyers see.
import { check, sleep } from 'k6';
import exec from 'k6/execution';
import { Counter } from 'k6/metrics';

import { always, begin, end, patience, verify } from './lib/money.js';
import { confirm, newOrder, read, sync } from './lib/paymentd.js';
import { after, number, seconds } from './lib/settings.js';

const rate = number('RATE', 10);
const duration = seconds('DURATION', '30s');
const doubts = new Counter('doubts');
const settled = new Counter('settled_by_sync');
const left = new Counter('left_alone');

/** @type {import('k6/options').Options} */
export const options = {
  ...patience,
  scenarios: {
    buyers: {
      executor: 'constant-arrival-rate', rate: Math.max(1, Math.round(rate * 60)), timeUnit: '1m', duration: after(duration),
      preAllocatedVUs: Math.ceil(rate * 2) + 5, maxVUs: Math.ceil(rate * 12) + 20,
    },
    operators: { executor: 'constant-vus', vus: 2, duration: after(duration + 5), exec: 'operate' },
  },
  thresholds: {
    ...always,
    http_req_failed: ['rate==0'],
    dropped_iterations: ['count==0'],
    doubts: ['count>0'],
    settled_by_sync: ['count>0'],
    payment_latency: ['max<10500'],
    'payment_latency{kind:plain}': ['p(95)<5000'],
  },
};

export function setup() {
  return begin([
    // Approved, and the answer is lost; most lookups after it are lost as well.
    { op: 'confirm', paymentKey: 'test_doubt-*', drop: 'after' },
    { op: 'lookup', paymentKey: 'test_doubt-*', drop: 'before', rate: 0.7 },
    { op: '*', latency: { min: '100ms', max: '300ms' } },
  ]);
}

/** @param {import('./lib/money.js').Run} run */
export default function (run) {
  const kind = exec.scenario.iterationInTest % 10 === 9 ? 'doubt' : 'plain';
  const order = newOrder(run.run, kind);
  const a = confirm(order, { kind });
  check(a, {
    'plain: 200 PAID': (x) => kind !== 'plain' || (x.status === 200 && x.word === 'PAID'),
    'doubt: 202 PENDING, or found by its own lookup': (x) => kind !== 'doubt' || x.word === 'PENDING' || x.word === 'PAID',
  });
  if (a.status === 202) {
    doubts.add(1);
    // Not final yet, or settled by now: never lost.
    check(read(order.orderId), { 'a doubt can be read': (x) => x.word === 'PENDING' || x.word === 'PAID' });
  }
  verify(order, a);
}

/** @typedef {{orderId: string, before: string, after: string, reason: string}} Result */

export function operate() {
  const a = sync({});
  /** @type {Result[]} */
  const results = a.body?.results ?? [];
  check(a, {
    'sync: 200': (x) => x.status === 200,
    'sync: its counts are its results': (x) => x.body?.checked >= results.filter((r) => r.reason !== 'in_progress').length,
    'sync: fails and cancels nothing': (x) => x.body?.failed === 0 && x.body?.canceled === 0 && x.body?.incidents === 0,
    'sync: what is at work is left alone': () => results.every((r) => r.reason !== 'in_progress' || r.before === r.after),
  });
  // The other operator, or recovery, may have been first.
  settled.add(results.filter((r) => r.before === 'PENDING' && r.after === 'PAID' && r.reason !== 'settled meanwhile').length);
  left.add(results.filter((r) => r.reason === 'in_progress').length);
  sleep(1);
}

/** @param {import('./lib/money.js').Run} run */
export function teardown(run) {
  end(run);
}
