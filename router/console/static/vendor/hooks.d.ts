export function useState<T>(first: T | (() => T)): [T, (next: T | ((now: T) => T)) => void];
export function useEffect(effect: () => void | (() => void), on?: unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), on?: unknown[]): void;
export function useMemo<T>(make: () => T, on: unknown[]): T;
export function useRef<T>(first: T): { current: T };
export function useRef<T>(): { current: T | undefined };
export function useCallback<F>(call: F, on: unknown[]): F;
